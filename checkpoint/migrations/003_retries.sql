-- Standfast, retries: the clock of an operation's attempts.
--
-- A failed attempt says when the next one may begin, and an attempt begins no sooner, whoever drives then. Failures
-- count over all processes; a person who carries a run on after it stopped gives its unfinished operations a fresh
-- budget, a crash does not.

alter table operations add column next_attempt_at timestamptz;
alter table operations add column forgiven integer not null default 0;  -- attempts up to this one count no more
alter table attempts add column retry_after double precision;           -- seconds that the failure asked for

-- A fresh budget of attempts for what this run has not finished: a person has said so.
create function forgive_1(thread text, run uuid) returns void language sql as $$
    update operations
       set state = 'planned', forgiven = attempts, next_attempt_at = null, updated_at = standfast.now()
     where thread_id = thread and run_id = run
       and (state = 'planned' or state = 'failed' and (kind = 'model' or failure_class = 'unauthorised'));
$$;
