"""Two buttons in a notebook that decide about an approval.

Invariant: a click says exactly what `resume` would say, for exactly what was shown; where there are no widgets, the
line that says it is printed. ipywidgets (the extra `notebooks`) is loaded when buttons are made.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from standfast.checkpoint.approvals import Approval
from standfast.checkpoint.errors import StandfastError
from standfast.graph.pictures.cards import approval_card
from standfast.graph.pictures.faces import face_of
from standfast.graph.pictures.markup import display, element, escaped
from standfast.tools.principals import Principal

if TYPE_CHECKING:
    from standfast.graph.blocking import Runtime


def decide_here(runtime: Runtime, approval: Approval, *, as_: Principal | None = None, token: str | None = None) -> Any:
    """The approval with a button to approve and one to reject it; returns the widget.

    A click decides and carries the thread on, then shows how it stands. The reason, if one is typed, goes with either
    answer. `as_` or `token` say who decides. Without ipywidgets the lines that decide are printed; None is returned.
    """
    try:
        import ipywidgets
    except ImportError:
        print(f'runtime.resume("{approval.thread_id}", approve="{approval.id}")')  # noqa: T201 - that is its job
        print(f'runtime.resume("{approval.thread_id}", reject="{approval.id}", reason="...")')  # noqa: T201
        return None

    card = ipywidgets.HTML(approval_card(approval))
    reason = ipywidgets.Text(placeholder="reason")
    approve = ipywidgets.Button(description="Approve", button_style="success")
    reject = ipywidgets.Button(description="Reject", button_style="danger")
    controls = ipywidgets.HBox([approve, reject, reason])
    under_way: set[asyncio.Task[None]] = set()

    def ended(shown: str | None) -> None:
        card.value = shown or ""
        controls.layout.display = "none"

    def refused(error: StandfastError) -> None:
        card.value = approval_card(approval) + display(element("p", escaped(error), class_="red"))
        approve.disabled = reject.disabled = False

    def decide(verb: str) -> None:
        approve.disabled = reject.disabled = True
        said: dict[str, Any] = {verb: approval, "reason": reason.value or None, "as_": as_, "token": token}

        async def carry_on() -> None:
            try:
                ended(face_of(await runtime.aresume(approval.thread_id, **said)))
            except StandfastError as error:
                refused(error)

        if runtime.on_callers_loop:
            task = asyncio.get_running_loop().create_task(carry_on())
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            return
        try:
            ended(face_of(runtime.resume(approval.thread_id, **said)))
        except StandfastError as error:
            refused(error)

    approve.on_click(lambda _: decide("approve"))
    reject.on_click(lambda _: decide("reject"))

    class Buttons(ipywidgets.VBox):  # type: ignore[misc]
        def __repr__(self) -> str:
            return f"<Buttons to approve or reject {approval.id}>"

    return Buttons([card, controls])
