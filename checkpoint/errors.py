"""The error tree: every error that Standfast raises on purpose, one type per thing a caller can react to.

StandfastError
├── ConfigurationError              the set-up is wrong: nothing was started
│   ├── DatabaseUnavailable         the server cannot be reached (transient)
│   ├── DatabaseTooOld              Postgres below 15
│   ├── DatabaseMisconfigured       reachable, but not usable as set up
│   ├── SchemaOutOfDate             migrations are missing
│   ├── SchemaTooNew                the schema was made by a newer release
│   ├── EmbeddedPostgresError       the embedded server could not be made available
│   ├── ModelNotConfigured          the model's name or provider cannot be used
│   ├── InvalidOperation            an operation's declaration is not usable
│   ├── DuplicateOperation          two operations with one name
│   ├── InvalidPolicy               a policy for approvals that is not usable
│   ├── UnknownOperation            a name that no operation has
│   └── UnregisteredType            the state schema reaches a type that the codec does not know
├── InvalidRequest                  bad input, refused at the door: nothing was done
│   └── InvalidThreadId
├── NotAuthenticated                the credential does not prove who acts: nothing was done
│   └── AuthenticatorUnavailable    who acts cannot be established now (transient)
├── UnknownThread
│   └── OtherTenant                 the thread belongs to another tenant than whoever acts: nothing was done
├── UnknownCheckpoint               the thread has no such checkpoint
├── UnknownApproval
├── UnknownArtifact                 no artifact has this id, or its bytes are gone
├── UnknownMessage                  no message of the outbox has this id
├── UnknownSchedule                 no schedule has this name
├── UnknownQuestion                 an answer names a question that is not open
├── AmbiguousAnswer                 a bare answer while several questions are open
├── NothingToAnswer                 an answer while no question is open
├── ThreadBusy                      new input while a run of the thread is unfinished
├── QueueFull                       as many runs wait for a worker as may: nothing was started (transient)
├── AlreadyDecided                  the approval has been decided before
│   └── AlreadyVoted                this person has voted, and more votes are needed
├── NotPermitted                    this principal may not decide this, or not so
├── ApprovalExpired                 the approval's time is over
├── UnknownOperationId              a completion names an operation that there is not
├── AlreadyCompleted                the operation's end has been told before
├── CompletedLate                   nobody waits for the operation any more; what was told is kept as late
├── DigestMismatch                  what was decided is not what is open
├── AlreadyFinished                 the run has ended
├── RunFailed                       a run has not succeeded, for somebody who asked for its end
├── NodeExited                      a node wanted to end the process, by sys.exit for instance
├── RunLimitReached                 the run has ended at its deadline, or its budget is spent; it can be given more
├── CancelPending                   the cancellation was asked for before, and the driver has not stopped yet
├── ClientKeyConflict               a client key that stands for another request
├── EventConflict                   an event id that stands for another event
├── LeaseHeld                       another process drives the thread (transient)
├── LeaseLost                       this driver's lease has passed to another: nothing of it lands
├── HeadMoved                       a checkpoint that does not follow its namespace's head
├── GraphChanged                    the loaded graph lacks what the thread waits for
├── StorageError
│   ├── StorageUnavailable          the database did not answer, even after retries (transient)
│   │   └── StorageForbidden        the role lacks a right that it needs; a thread waits until it is granted (transient)
│   ├── UnstorableValue             a value that would not come back as it was
│   ├── UnknownStoredType           a stored value names a type that is not registered
│   ├── StoredTypeChanged           a stored value that no longer fits its class
│   ├── CorruptValue                stored bytes that are not what they claim to be
│   └── UnknownKey                  a sealed value names a key that is not configured
├── OperationError
│   ├── OperationMismatch           one operation id, two different calls
│   ├── NotGranted                  no valid, unused grant for this operation
│   ├── ForkMayOnlyRead             a new effect in a fork that was made without leave for it
│   ├── DeliveryFailed              a channel did not take a message
│   └── ModelFailed                 the model did not answer, after the attempts it is given (transient)
└── UsageError                      the API is used in a way that cannot work
    ├── RuntimeClosed
    ├── WrongArguments              a method was given what it does not take; a TypeError too
    ├── WaitRefused                 a wait in an operation that must not be called twice
    └── WrongLoop                   a handle used from another event loop, or a blocking call inside one

A message says what happened, to what, and what to do next. Nobody matches on messages: `transient` says
whether time alone can mend the failure, attributes carry the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class StandfastError(Exception):
    """Base of all errors that Standfast raises on purpose. Keyword arguments become attributes."""

    transient: ClassVar[bool] = False

    def __init__(self, message: str, /, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data: Mapping[str, Any] = data

    def __getattr__(self, name: str) -> Any:
        data = self.__dict__.get("data", {})
        if name in data:
            return data[name]
        raise AttributeError(name)

    def __reduce__(self) -> Any:
        return (_rebuild, (type(self), self.message, dict(self.data)))


def _rebuild(cls: type[StandfastError], message: str, data: dict[str, Any]) -> StandfastError:
    return cls(message, **data)


class ConfigurationError(StandfastError):
    """The set-up is wrong; nothing was started."""


class DatabaseUnavailable(ConfigurationError):
    """The database server cannot be reached."""

    transient = True


class DatabaseTooOld(ConfigurationError):
    """The server is older than Postgres 15."""


class DatabaseMisconfigured(ConfigurationError):
    """The server is reachable but cannot be used as it is set up."""


class SchemaOutOfDate(ConfigurationError):
    """Migrations are missing; `standfast migrate` applies them."""


class SchemaTooNew(ConfigurationError):
    """The schema was made by a newer release than this one."""


class EmbeddedPostgresError(ConfigurationError):
    """The embedded server could not be made available."""


class ModelNotConfigured(ConfigurationError):
    """The model's name or its provider cannot be used."""


class InvalidOperation(ConfigurationError):
    """An operation's declaration is not usable."""


class DuplicateOperation(ConfigurationError):
    """Two operations have one name."""


class InvalidPolicy(ConfigurationError):
    """A policy for approvals that is not usable; `file` and `line` say where, if a file holds it."""


class UnknownOperation(ConfigurationError):
    """No operation has this name."""


class UnregisteredType(ConfigurationError):
    """The state schema reaches a type that the codec does not know."""


class InvalidRequest(StandfastError):
    """Bad input, refused before anything was done."""


class InvalidThreadId(InvalidRequest):
    """A thread id that cannot be one."""


class NotAuthenticated(StandfastError):
    """The credential does not prove who acts, or there is none; nothing was done."""


class AuthenticatorUnavailable(NotAuthenticated):
    """Who acts cannot be established now; nothing was done."""

    transient = True


class UnknownThread(StandfastError):
    """No thread has this id."""


class OtherTenant(UnknownThread):
    """The thread belongs to another tenant than whoever acts; the message is as if it were not there."""


class UnknownCheckpoint(StandfastError):
    """The thread has no such checkpoint, or the beginning that was given fits several."""


class UnknownApproval(StandfastError):
    """No approval has this id."""


class UnknownArtifact(StandfastError):
    """No artifact has this id, or its bytes are gone."""


class UnknownMessage(StandfastError):
    """No message of the outbox has this id."""


class UnknownSchedule(StandfastError):
    """No schedule has this name."""


class UnknownQuestion(StandfastError):
    """The answer names a question that is not open."""


class AmbiguousAnswer(StandfastError):
    """A bare answer while several questions are open."""


class NothingToAnswer(StandfastError):
    """An answer while no question is open."""


class ThreadBusy(StandfastError):
    """New input while a run of the thread is unfinished."""


class QueueFull(StandfastError):
    """As many runs of `key` wait for a worker as may (`bound`); nothing was started."""

    transient = True


class AlreadyDecided(StandfastError):
    """The approval has been decided before; `decision` and `by` say what and by whom."""


class AlreadyVoted(AlreadyDecided):
    """One person has one vote, and this one has given it; the approval is still open."""


class NotPermitted(StandfastError):
    """This principal may not decide this approval, or not in this way; `why` says which rule forbids it."""


class ApprovalExpired(StandfastError):
    """The approval's time is over."""


class UnknownOperationId(StandfastError):
    """No recorded operation has this id."""


class AlreadyCompleted(StandfastError):
    """The operation's end has been told before, by `by`; nothing was changed."""


class CompletedLate(StandfastError):
    """Nobody waits for the operation any more; its end was kept with its attempt, and changes no outcome."""


class DigestMismatch(StandfastError):
    """What was decided is not what is open."""


class AlreadyFinished(StandfastError):
    """The run has ended; nothing was changed."""


class RunFailed(StandfastError):
    """A run has not succeeded, for somebody who asked for its end; its reason is in the message."""


class NodeExited(StandfastError):
    """A node raised `SystemExit` or `KeyboardInterrupt`; that ends its run, and not the process."""


class RunLimitReached(StandfastError):
    """The run has ended at its deadline or budget (`limit` says which); given more of it, it goes on."""


class CancelPending(StandfastError):
    """The cancellation was asked for before, and the thread's driver has not stopped yet."""

    transient = True


class ClientKeyConflict(StandfastError):
    """The client key was used for another request; nothing was started."""


class EventConflict(StandfastError):
    """The event's id was used for another event; nothing was changed."""


class LeaseHeld(StandfastError):
    """Another process drives the thread."""

    transient = True


class LeaseLost(StandfastError):
    """This driver's lease has passed to another; nothing that it writes lands."""


class HeadMoved(StandfastError):
    """A checkpoint that does not follow its namespace's head."""


class GraphChanged(StandfastError):
    """The loaded graph lacks what the thread waits for; the thread was left as it was."""


class GraphNotServed(StandfastError):
    """Nobody who could drive the thread is there: this process has another graph, and no living worker serves it."""


class StorageError(StandfastError):
    """Something about stored values or their store."""


class StorageUnavailable(StorageError):
    """The database did not answer, even after retries."""

    transient = True


class StorageForbidden(StorageUnavailable):
    """The role lacks a right that it needs: no thread's fault, and mended by whoever grants it."""


class UnstorableValue(StorageError):
    """A value that would not come back as it was; `path` says where it is, `task` whose it is, if a task wrote it."""


class UnknownStoredType(StorageError):
    """A stored value names a type that is not registered; `type_name` and `path` say which and where."""


class StoredTypeChanged(StorageError):
    """A stored value no longer fits its class; `type_name`, `field` and `path` say what and where."""


class CorruptValue(StorageError):
    """Stored bytes that are not what they claim to be."""


class UnknownKey(StorageError):
    """A sealed value names a key that is not configured; `key_id` says which."""


class OperationError(StandfastError):
    """Something about one operation."""


class OperationMismatch(OperationError):
    """One operation id, two different calls."""


class NotGranted(OperationError):
    """No valid, unused grant for this operation."""


class DeliveryFailed(OperationError):
    """A channel did not take a message; `permanent` says that it never will, `retry_after` how long to wait."""


class ForkMayOnlyRead(OperationError):
    """A new effect in a fork that was made without leave for it; nothing was done."""


class ModelFailed(OperationError):
    """The model did not answer, after the attempts that it is given."""

    transient = True


class UsageError(StandfastError):
    """The API is used in a way that cannot work."""


class RuntimeClosed(UsageError):
    """The runtime has been closed."""


class WrongArguments(UsageError, TypeError):
    """A method was given arguments that it does not take, or lacks some; nothing was done."""


class WaitRefused(UsageError):
    """An operation that must not be called twice cannot wait: after a wait it would be called again."""


class WrongLoop(UsageError):
    """A handle used from another event loop, or a blocking call made inside one."""
