-- Standfast, outcomes: what becomes of an attempt that did not report, of one whose work goes on elsewhere, and of
-- one that ends late.
--
-- An attempt that began and never reported may still be under way until its lease and its deadline have passed.
-- Then its outcome is unknown. Out of unknown lead four ways: the same call again with its key (idempotent), the
-- operation's own reconcile, a person (an approval of the kind `outcome`), or its completion, told from outside.
-- What settles it is written once, under the lease, by settle_outcome_1 or begin_attempt_1.
--
-- A completion takes no lease: it is one row, the first one counts, and its wake-up. It is applied where the
-- operation is begun again. One that nobody can use any more is kept with its attempt, as late.

alter table attempts add column deadline timestamptz;       -- until then it may still be under way; of a pending one, its end
alter table attempts add column late text check (late in ('succeeded', 'failed'));
alter table attempts add column late_at timestamptz;
alter table attempts add column late_message text;
alter table attempts drop constraint attempts_state_check;
alter table attempts add constraint attempts_state_check
    check (state in ('executing', 'pending', 'succeeded', 'failed', 'waiting', 'abandoned'));

alter table operations add column handle bytea;             -- of long work elsewhere, as the operation returned it
alter table operations add column looks integer not null default 0;  -- how often its reconcile or poll could not tell
alter table operations add column look_at timestamptz;      -- when to ask it again
create index operations_id on operations (id);

alter table approvals add column kind text not null default 'call' check (kind in ('call', 'outcome'));
alter table approvals drop constraint approvals_state_check;
alter table approvals add constraint approvals_state_check check (
    state in ('open', 'withdrawn')
    or kind = 'call' and state in ('approved', 'rejected', 'answered', 'edited', 'expired')
    or kind = 'outcome' and state = 'settled');             -- never a grant
alter table approvals drop constraint approvals_thread_id_operation_id_round_key;
alter table approvals add constraint approvals_of_operation unique (thread_id, operation_id, kind, round);
alter table decisions drop constraint decisions_decision_check;
alter table decisions add constraint decisions_decision_check check (decision in (
    'approve', 'reject', 'edit', 'respond', 'expire', 'withdraw', 'happened', 'did_not_happen', 'abandon'));

create table completions (
    thread_id       text not null,
    operation_id    text not null,
    attempt         integer not null,
    id              uuid not null,                          -- made by the sender: a repeat is recognised
    state           text not null check (state in ('succeeded', 'failed')),
    result          bytea,
    failure_message text,
    result_sha256   text,                                   -- of the result in clear: for the audit
    completed_by    text not null,
    vouched         boolean not null,
    verified_by     text,
    completed_at    timestamptz not null default standfast.now(),
    primary key (thread_id, operation_id, attempt),
    foreign key (thread_id, operation_id) references operations (thread_id, id) on delete cascade
);

-- How an attempt that nobody waits for any more has ended. It is told once and changes no other outcome.
create function late_1(thread text, op text, in_attempt integer, in_state text, in_message text) returns void
language sql as $$
    update attempts set late = in_state, late_at = standfast.now(), late_message = in_message
     where thread_id = thread and operation_id = op and number = in_attempt and late is null
       and state not in ('succeeded', 'failed');
$$;

-- in_attempt: null is the latest. verdict: done | again | unknown | completed (by whom) | late (the state it has).
create function complete_1(
    op text, in_attempt integer, completion uuid, in_state text, in_result bytea, in_message text,
    in_result_sha256 text, who text, in_vouched boolean, in_verified_by text)
returns table (verdict text, detail text) language plpgsql as $$
declare
    o operations%rowtype;
    c completions%rowtype;
    thread text;
    number_of integer;
    settled boolean;
begin
    select thread_id into thread from operations where id = op and inherited_from is null;
    if not found then
        return query select 'unknown', null::text;
        return;
    end if;
    -- In the order of locks: approvals, the thread's row, then what is its own.
    perform 1 from approvals x where x.thread_id = thread and x.operation_id = op and x.kind = 'outcome' for update;
    perform 1 from threads where id = thread for no key update;
    select * into o from operations where thread_id = thread and id = op for update;
    number_of := coalesce(in_attempt, o.attempts);
    select * into c from completions
     where thread_id = thread and operation_id = op and attempt = number_of;
    if found then
        return query select case when c.id = completion then 'again' else 'completed' end, c.completed_by;
        return;
    end if;
    settled := exists (select 1 from approvals x where x.thread_id = thread and x.operation_id = op
                                                   and x.kind = 'outcome' and x.state = 'settled' and x.used_at is null);
    if number_of <> o.attempts or o.state not in ('executing', 'unknown') or settled
       or not exists (select 1 from runs where thread_id = thread and id = o.run_id and state in ('open', 'needs_attention'))
    then
        perform late_1(thread, op, number_of, in_state, in_message);
        return query select 'late', case when settled then 'settled' else o.state end;
        return;
    end if;
    insert into completions (thread_id, operation_id, attempt, id, state, result, failure_message, result_sha256,
                             completed_by, vouched, verified_by)
    values (thread, op, number_of, completion, in_state, in_result, in_message, in_result_sha256, who, in_vouched,
            in_verified_by);
    update approvals x set state = 'withdrawn', decided_at = standfast.now()
     where x.thread_id = thread and x.operation_id = op and x.kind = 'outcome' and x.state = 'open';
    update waits set state = 'answered', answered_by = who, ended_at = standfast.now()
     where thread_id = thread and state = 'open'
       and (kind = 'completion' and name = op
            or kind = 'approval' and approval_id in (
               select x.id from approvals x where x.thread_id = thread and x.operation_id = op and x.kind = 'outcome'));
    perform wake_1(thread);
    return query select 'done', null::text;
end $$;

-- The attempt was cut off by its driver, which goes: it is not under way any more. A call that must not be repeated may
-- have arrived all the same, and is asked about after its deadline, as ever. One without a deadline may be at work on a
-- thread that nothing stops, and tells its end by itself.
create function stop_attempt_1(thread text, held bigint, op text, in_attempt integer) returns void
language plpgsql as $$
begin
    perform assert_lease_1(thread, held);
    update attempts set state = 'abandoned', ended_at = standfast.now()
     where thread_id = thread and operation_id = op and number = in_attempt and state = 'executing'
       and deadline is not null
       and exists (select 1 from operations o
                    where o.thread_id = thread and o.id = op and o.state = 'executing' and o.effect = 'idempotent');
    if found then
        update operations set state = 'planned', updated_at = standfast.now() where thread_id = thread and id = op;
    end if;
end $$;

-- The attempt has handed its work to somebody else, who will tell its end, within so many seconds if they are given.
create function pend_attempt_1(
    thread text, held bigint, op text, in_attempt integer, in_handle bytea, timeout double precision)
returns void language plpgsql as $$
begin
    perform assert_lease_1(thread, held);
    update operations set handle = in_handle, updated_at = standfast.now()
     where thread_id = thread and id = op and state = 'executing' and attempts = in_attempt;
    update attempts set state = 'pending', deadline = standfast.now() + make_interval(secs => timeout)
     where thread_id = thread and operation_id = op and number = in_attempt and state = 'executing';
end $$;

-- Its reconcile or poll could not tell: when to ask again, not later than its time-out, which may begin anew.
create function look_again_1(
    thread text, held bigint, op text, delay double precision, in_handle bytea, timeout double precision)
returns timestamptz language plpgsql as $$
declare
    next_look timestamptz;
    ends_at timestamptz;
begin
    perform assert_lease_1(thread, held);
    update attempts a
       set deadline = case when timeout is null then a.deadline else standfast.now() + make_interval(secs => timeout) end
      from operations o
     where o.thread_id = thread and o.id = op
       and a.thread_id = thread and a.operation_id = op and a.number = o.attempts and a.state = 'pending'
    returning a.deadline into ends_at;
    update operations set looks = looks + 1, look_at = standfast.now() + make_interval(secs => delay),
                          handle = coalesce(in_handle, handle), updated_at = standfast.now()
     where thread_id = thread and id = op and state in ('executing', 'unknown')
    returning look_at into next_look;
    return least(next_look, ends_at);
end $$;

-- What became of an unknown outcome. new_state: reconciled, or planned (it did not happen, and may be tried again).
-- answered: the person's decision that this rests on; it is used with it. False: somebody else has settled it.
create function settle_outcome_1(
    thread text, held bigint, op text, in_attempt integer, new_state text, new_result bytea,
    new_failure_class text, new_failure_message text, answered text, delay double precision)
returns boolean language plpgsql as $$
begin
    perform assert_lease_1(thread, held);
    if answered is not null then
        update approvals set used_at = standfast.now()
         where thread_id = thread and id = answered and state = 'settled' and used_at is null;
        if not found then
            return false;
        end if;
    end if;
    update operations
       set state = new_state, result = new_result, failure_class = new_failure_class,
           failure_message = new_failure_message, updated_at = standfast.now(),
           next_attempt_at = standfast.now() + make_interval(secs => delay)
     where thread_id = thread and id = op and state = 'unknown' and attempts = in_attempt;
    return found;
end $$;

-- The end that somebody told of the latest attempt, if somebody did. What was unknown is reconciled by it.
create function apply_completion_1(o operations) returns operations language plpgsql as $$
declare
    c completions%rowtype;
begin
    select * into c from completions x
     where x.thread_id = o.thread_id and x.operation_id = o.id and x.attempt = o.attempts;
    if not found then
        return o;
    end if;
    update attempts x set state = c.state, ended_at = c.completed_at, failure_message = c.failure_message
     where x.thread_id = o.thread_id and x.operation_id = o.id and x.number = o.attempts
       and x.state in ('executing', 'pending', 'abandoned');
    update operations x
       set state = case when o.state = 'unknown' then 'reconciled' else c.state end, result = c.result,
           failure_class = case when c.state = 'failed' then 'permanent' end, failure_message = c.failure_message,
           updated_at = standfast.now()
     where x.thread_id = o.thread_id and x.id = o.id
    returning * into o;
    return o;
end $$;

-- How an operation stands, for its driver, which holds the lease: see begin_attempt_1.
create function standing_1(thread text, op text)
returns table (state text, attempt integer, result bytea, failure_class text, failure_message text,
               until timestamptz, looks integer, handle bytea)
language plpgsql as $$
declare
    o operations%rowtype;
    a attempts%rowtype;
begin
    select * into o from operations where thread_id = thread and id = op for update;
    if not found then
        return query select 'planned', 0, null::bytea, null::text, null::text, null::timestamptz, 0, null::bytea;
        return;
    end if;
    if o.state in ('executing', 'unknown') then
        o := apply_completion_1(o);
    end if;
    state := o.state;
    until := case when o.look_at > standfast.now() then o.look_at end;
    if o.state = 'executing' then
        select * into a from attempts x where x.thread_id = thread and x.operation_id = op and x.number = o.attempts;
        if a.state = 'pending' then
            state := case when a.deadline <= standfast.now() then 'overdue' else 'pending' end;
            until := case when o.look_at is null then a.deadline  -- nobody polls
                          when o.look_at > standfast.now() then least(o.look_at, a.deadline) end;
        elsif o.effect in ('idempotent', 'at_most_once') and a.deadline > standfast.now() then
            state := 'waiting';
            until := a.deadline;
        elsif o.effect in ('idempotent', 'at_most_once') then
            state := 'unknown';
            update operations x set state = 'unknown', updated_at = standfast.now()
             where x.thread_id = thread and x.id = op;
            update attempts x set state = 'abandoned', ended_at = standfast.now()
             where x.thread_id = thread and x.operation_id = op and x.state = 'executing';
        end if;
    end if;
    return query select standing_1.state, o.attempts, o.result, o.failure_class, o.failure_message,
                        standing_1.until, o.looks, o.handle;
end $$;
