-- Standfast, retries: the clock of an operation's attempts, and the limits of a run.
--
-- A failed attempt says when the next one may begin, and an attempt begins no sooner, whoever drives then. Failures
-- count over all processes; a person who carries a run on after it stopped gives its unfinished operations a fresh
-- budget, a crash does not.
--
-- A run ends at its deadline, or when its budget is spent, with everything kept. Given more, it is open again, and so is
-- what its end had withdrawn.

alter table operations add column next_attempt_at timestamptz;
alter table operations add column forgiven integer not null default 0;  -- attempts up to this one count no more
create index operations_retried on operations (thread_id, run_id) where next_attempt_at is not null;
alter table attempts add column retry_after double precision;           -- seconds that the failure asked for
alter table runs add column budget bytea;                               -- sealed: the most that it may spend
alter table runs add column limit_reached text check (limit_reached in ('deadline', 'budget'));

-- A fresh budget of attempts for what this run has not finished: a person has said so.
create function forgive_1(thread text, run uuid) returns void language sql as $$
    update operations
       set state = 'planned', forgiven = attempts, next_attempt_at = null, updated_at = standfast.now()
     where thread_id = thread and run_id = run
       and (state = 'planned' or state = 'failed' and (kind = 'model' or failure_class = 'unauthorised'));
$$;

-- A run that stopped goes on, because a person said so. verdict: reopened | deadline | budget (it ended at this limit
-- and needs more of it) | nothing (it has not stopped, or has ended otherwise).
create function reopen_run_1(thread text, new_deadline timestamptz, new_budget bytea) returns text
language plpgsql as $$
declare
    r runs%rowtype;
begin
    perform 1 from threads where id = thread for no key update;
    select x.* into r from runs x join threads t on t.id = x.thread_id and t.run_id = x.id
     where t.id = thread and (x.state = 'needs_attention' or x.limit_reached is not null);
    if not found then
        return 'nothing';
    end if;
    if r.limit_reached = 'deadline' and new_deadline is null or r.limit_reached = 'budget' and new_budget is null then
        return r.limit_reached;
    end if;
    update runs set state = 'open', reason = null, limit_reached = null, ended_at = null, ended_epoch = null,
                    deadline = coalesce(new_deadline, deadline), budget = coalesce(new_budget, budget)
     where thread_id = thread and id = r.id;
    update waits set state = 'open', ended_at = null
     where thread_id = thread and run_id = r.id and state = 'withdrawn' and ended_at = r.ended_at;
    update approvals set state = 'open', decided_at = null
     where thread_id = thread and run_id = r.id and state = 'withdrawn' and decided_at = r.ended_at;
    perform forgive_1(thread, r.id);
    perform wake_1(thread);
    return 'reopened';
end $$;
