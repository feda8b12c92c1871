-- Standfast, foundation.
--
-- A thread is one conversation or piece of work; a run is one request on it. A driver may write for a thread
-- only while it holds the thread's lease: an epoch that grows with every claim. Every write of a driver calls
-- assert_lease_1 in its own transaction, which locks the pair (id, epoch) against a change until the commit:
-- a claim waits for a fenced transaction in flight, and whatever an older epoch sends afterwards is refused.
-- People, events and new input never take the lease: they change one row by compare-and-set and set due_at.
--
-- Tables of one thread lead with thread_id, so that they can be distributed by it. Global tables: documents,
-- passages, collections, collection_documents (content-addressed or fixed at creation, shared by threads).
-- User values stand in sealed columns (bytea) only; the text of documents is in clear, because full-text
-- search reads it. LangGraph's own tables live beside these in the same schema.
--
-- SQLSTATEs raised here, mapped to error types in checkpoint/database.py:
--   SF001 LeaseLost   SF002 HeadMoved   SF003 NotGranted   SF004 OperationMismatch
--   SF009 ForkMayOnlyRead
--
-- An approval is one question about one digest, under the terms of the policy that it was opened under. Each person
-- has one vote. An edit that does not settle it closes it, and the edited call is asked under a new id: a digest
-- never changes while its question stands. The grant is used where the operation begins, and nowhere else.

-- All times come from here; tests replace the body to freeze and move the clock.
create function standfast.now() returns timestamptz language sql volatile as 'select pg_catalog.clock_timestamp()';

-- Small values of a checkpoint travel with it, sealed in one column; LangGraph has them in its JSONB, in clear.
alter table checkpoints add column sealed bytea;

-- What a claim looks for: the newest of a thread, in whichever namespace.
create index checkpoints_newest on checkpoints (thread_id, checkpoint_id);

create table threads (
    id                  text primary key check (length(id) between 1 and 255),
    uuid                uuid not null unique default gen_random_uuid(),
    tenant              text not null default 'default',
    owner               text,
    graph               text not null,
    version             text not null,
    fingerprint         text not null,
    run_id              uuid,                    -- the latest run
    epoch               bigint not null default 0,
    lease_holder        text,                    -- made anew for each claim, never a stable worker name
    lease_worker        text,                    -- who that is, for people
    lease_expires_at    timestamptz,
    due_at              timestamptz,             -- something may be due from then on
    cancel_requested_at timestamptz,
    crashes             integer not null default 0,
    created_at          timestamptz not null default standfast.now(),
    updated_at          timestamptz not null default standfast.now(),
    unique (id, epoch)                           -- makes epoch a key column: FOR KEY SHARE blocks its change only
);
create index threads_due on threads (due_at) where due_at is not null;
create index threads_leased on threads (lease_expires_at) where lease_holder is not null;
create index threads_recent on threads (tenant, updated_at desc, id);

create table runs (
    thread_id     text not null references threads (id) on delete cascade,
    id            uuid not null,
    number        integer not null,              -- 1, 2, ... within the thread
    tenant        text not null default 'default',
    client_key    text,
    parent_run_id uuid,
    state         text not null default 'open'
                  check (state in ('open', 'needs_attention', 'succeeded', 'failed', 'cancelled')),
    reason        text,                          -- why it needs attention, failed or was cancelled
    requested_by  text not null,
    vouched       boolean not null,              -- the requester's name was taken on the caller's word
    version       text not null,                 -- of the code that it asked for: the thread's at its turn
    fingerprint   text not null,
    model         text,
    collection_id text,
    input         bytea not null,
    settings      bytea not null,                -- context, absolute paths, budget
    outcome       bytea,
    deadline      timestamptz,
    accepted_at   timestamptz not null default standfast.now(),
    ended_at      timestamptz,
    ended_epoch   bigint,                        -- whose end it was: a commit sent again is recognised
    primary key (thread_id, id),
    unique (thread_id, number)
);
create unique index runs_id on runs (id);
create index runs_recent on runs (tenant, accepted_at desc, id);
create index runs_apart on runs (state, accepted_at desc) where state not in ('open', 'succeeded');
create unique index runs_client_key on runs (tenant, client_key) where client_key is not null;

create table operations (
    thread_id       text not null references threads (id) on delete cascade,
    id              text not null,
    run_id          uuid not null,
    kind            text not null check (kind in ('tool', 'model')),
    name            text not null,
    namespace       text not null,
    turn            integer not null,
    index           integer not null,
    effect          text not null check (effect in ('read', 'idempotent', 'transactional', 'at_most_once')),
    digest          text not null,
    state           text not null default 'planned'
                    check (state in ('planned', 'executing', 'succeeded', 'failed', 'unknown', 'reconciled')),
    arguments       bytea not null,
    result          bytea,
    failure_class   text,
    failure_message text,
    attempts        integer not null default 0,
    created_at      timestamptz not null default standfast.now(),
    updated_at      timestamptz not null default standfast.now(),
    primary key (thread_id, id)
);
create index operations_of_run on operations (thread_id, run_id, created_at);

create table attempts (
    thread_id       text not null,
    operation_id    text not null,
    number          integer not null,
    epoch           bigint not null,
    worker          text not null,
    started_at      timestamptz not null default standfast.now(),
    ended_at        timestamptz,
    state           text not null default 'executing'
                    check (state in ('executing', 'succeeded', 'failed', 'waiting', 'abandoned')),
    failure_class   text,
    failure_message text,
    primary key (thread_id, operation_id, number),
    foreign key (thread_id, operation_id) references operations (thread_id, id) on delete cascade
);

create table approvals (
    thread_id      text not null references threads (id) on delete cascade,
    id             text not null,
    run_id         uuid not null,
    operation_id   text not null,
    operation      text not null,
    operation_version text not null,
    round          integer not null,             -- an unusable answer asks again under a new id
    state          text not null default 'open'
                   check (state in ('open', 'approved', 'rejected', 'answered', 'edited', 'expired', 'withdrawn')),
    digest         text not null,                -- what a decision is bound to: operation, arguments, policy, expiry
    operation_digest text not null,              -- of name and arguments, as the ledger knows them
    policy_version text not null,
    required       integer not null check (required > 0),
    group_name     text,                         -- whose members decide; null: anyone
    group_source   text not null check (group_source in ('list', 'table', 'claims')),  -- where its members stand
    approvers      text[],                       -- of a list: the members then
    requester_may_decide boolean not null,
    edit_needs_another boolean not null,
    reason_required boolean not null,
    allowed        text[] not null,              -- the decisions that may be given
    editor         text,                         -- whose edit this question shows
    arguments      bytea not null,               -- what would be executed now; an edit replaces it
    request        bytea not null,               -- description, failed checks and proposed arguments, as shown
    requested_by   text not null,
    requested_at   timestamptz not null default standfast.now(),
    expires_at     timestamptz not null,
    remind_at      timestamptz,                  -- when it is told of again, while it is open
    remind_after   interval,
    decided_at     timestamptz,
    used_at        timestamptz,
    primary key (thread_id, id),
    unique (thread_id, operation_id, round)
);
create unique index approvals_id on approvals (id);
create index approvals_open on approvals (requested_at) where state = 'open';
create index approvals_open_of_thread on approvals (thread_id) where state = 'open';
create index approvals_recent on approvals (requested_at desc, id);
create index approvals_remind on approvals (remind_at) where state = 'open' and remind_at is not null;

create table decisions (
    thread_id     text not null,
    approval_id   text not null,
    id            uuid not null,                 -- made by the decider before sending: a repeat is recognised
    decision      text not null check (decision in ('approve', 'reject', 'edit', 'respond', 'expire', 'withdraw')),
    principal     text not null,
    vouched       boolean not null,
    verified_by   text,                          -- who established the name; null: nobody, or the clock decided
    groups        text[] not null default '{}',  -- as the principal's authenticator claimed them then
    self_approved boolean not null,
    digest        text not null,                 -- of what the decider saw
    granted       text,                          -- the digest that this is a vote for
    reason        text,
    arguments     bytea,                         -- of an edit
    response      bytea,
    decided_at    timestamptz not null default standfast.now(),
    primary key (thread_id, approval_id, id),
    foreign key (thread_id, approval_id) references approvals (thread_id, id) on delete cascade
);
create unique index decisions_vote on decisions (thread_id, approval_id, principal) where granted is not null;

create table waits (
    thread_id   text not null references threads (id) on delete cascade,
    id          text not null,                   -- LangGraph's interrupt id, unique within the thread only
    run_id      uuid not null,
    kind        text not null check (kind in ('approval', 'question')),
    approval_id text,
    node        text not null,                   -- where the graph waits: node names joined by '/'
    request     bytea not null,
    state       text not null default 'open' check (state in ('open', 'answered', 'withdrawn')),
    answer      bytea,
    answered_by text,
    verified_by text,                            -- who established that name; null: nobody
    answer_sha256 text,                          -- of the answer in clear: what the audit tells of it
    opened_at   timestamptz not null default standfast.now(),
    ended_at    timestamptz,
    primary key (thread_id, id)
);
create index waits_open on waits (thread_id) where state = 'open';
create index waits_longest on waits (kind, opened_at) where state = 'open';

create table documents (
    sha256     text primary key,                 -- of the file's bytes
    media_type text not null,
    title      text not null,
    size       bigint not null,
    added_at   timestamptz not null default standfast.now()
);

create table passages (
    sha256 text not null references documents (sha256) on delete cascade,
    index  integer not null,
    text   text not null,
    search tsvector not null generated always as (to_tsvector('english', text)) stored,
    primary key (sha256, index)
);
create index passages_search on passages using gin (search);

create table collections (
    id         text primary key,                 -- SHA-256 over the sorted names and hashes
    put_at     timestamptz not null default standfast.now()  -- the last time
);

create table collection_documents (
    collection_id text not null references collections (id) on delete cascade,
    name          text not null,
    sha256        text not null references documents (sha256),
    primary key (collection_id, name)
);

-- The fence. The lock on a key column lets renewals through and makes a claim wait for this commit.
create function assert_lease_1(thread text, held bigint) returns void language plpgsql as $$
begin
    perform 1 from threads where id = thread and epoch = held for key share;
    if not found then
        raise exception 'the lease of thread % at epoch % is lost', thread, held using errcode = 'SF001';
    end if;
end $$;

-- A checkpoint follows its namespace's head. Sent again it is recognised; forked lets the first one through.
create function assert_head_1(thread text, namespace text, parent text, new_id text, forked boolean)
returns void language plpgsql as $$
declare
    head text;
begin
    select checkpoint_id into head from checkpoints
     where thread_id = thread and checkpoint_ns = namespace order by checkpoint_id desc limit 1;
    if head is not distinct from new_id then
        return;
    end if;
    if head is not null and new_id < head then
        perform 1 from checkpoints
          where thread_id = thread and checkpoint_ns = namespace and checkpoint_id = new_id;
        if found then
            return;  -- sent again with the step that it came with: its answer was lost
        end if;
        raise exception 'checkpoint % is behind the head % of thread %', new_id, head, thread using errcode = 'SF002';
    end if;
    if not forked and head is distinct from parent then
        raise exception 'the head of thread % has moved to %, this checkpoint follows %', thread, head, parent
            using errcode = 'SF002';
    end if;
end $$;

-- One row when the lease was taken (or is already this holder's own: the answer to a claim can be lost). What
-- is due counts as seen from then on: whatever comes later sets due_at again.
create function claim_lease_1(thread text, holder text, worker text, seconds double precision)
returns table (epoch bigint, head text, crashes integer, cancel_requested boolean) language sql as $$
    update threads t
       set epoch = case when t.lease_holder = claim_lease_1.holder then t.epoch else t.epoch + 1 end,
           crashes = case when t.lease_holder is null or t.lease_holder = claim_lease_1.holder
                          then t.crashes else t.crashes + 1 end,
           lease_holder = claim_lease_1.holder, lease_worker = claim_lease_1.worker,
           lease_expires_at = standfast.now() + make_interval(secs => seconds), due_at = null
     where t.id = thread
       and (t.lease_holder is null or t.lease_holder = claim_lease_1.holder or t.lease_expires_at < standfast.now())
    returning t.epoch, (select max(checkpoint_id) from checkpoints where thread_id = thread), t.crashes,
              t.cancel_requested_at is not null;
$$;

-- Which of these leases still stand, renewed; a missing one is lost.
create function renew_leases_1(threads_held text[], epochs bigint[], seconds double precision)
returns table (id text, epoch bigint) language sql as $$
    update threads t set lease_expires_at = standfast.now() + make_interval(secs => seconds)
      from unnest(threads_held, epochs) as held (id, epoch)
     where t.id = held.id and t.epoch = held.epoch and t.lease_holder is not null
    returning t.id, t.epoch;
$$;

-- Mark what is due as seen, before it is read. True if cancellation was asked for.
create function take_due_1(thread text, held bigint) returns boolean language plpgsql as $$
declare
    cancelling boolean;
begin
    perform assert_lease_1(thread, held);
    update threads set due_at = null where id = thread returning cancel_requested_at is not null into cancelling;
    return cancelling;
end $$;

-- Whether somebody is among those who decide, now. Of a list, in_members are its members now; what the claims of a
-- voter said stands with his vote.
create function is_approver_1(a approvals, voter text, voter_groups text[], in_source text, in_members text[])
returns boolean language plpgsql stable as $$
begin
    if a.group_name is null then
        return true;
    elsif coalesce(in_source, a.group_source) = 'list' then
        return voter = any(coalesce(in_members, a.approvers));
    elsif coalesce(in_source, a.group_source) = 'table' then
        return exists (select from group_members m join threads t on t.tenant = m.tenant
                        where t.id = a.thread_id and m.name = a.group_name and m.principal = voter);
    end if;
    return a.group_name = any(voter_groups);
end $$;

create function may_vote_1(a approvals, voter text, voter_groups text[], in_source text, in_members text[])
returns boolean language sql stable as $$
    select is_approver_1(a, voter, voter_groups, in_source, in_members)
       and (a.requester_may_decide or voter <> a.requested_by)
       and not (a.edit_needs_another and voter is not distinct from a.editor);
$$;

-- Check a grant and use it up, where its operation begins: it is for exactly this digest, by a quorum of people who
-- still may give it, and in time. A later attempt of the same operation goes on under the same grant.
create function use_grant_1(
    thread text, op text, op_digest text, approval text, in_granted text, in_policy_version text,
    in_required integer, in_source text, in_members text[])
returns void language plpgsql as $$
declare
    a approvals%rowtype;
begin
    select * into a from approvals x
     where x.thread_id = thread and x.id = approval and x.operation_id = op and x.state = 'approved'
       and x.digest = in_granted and x.operation_digest = op_digest and x.policy_version = in_policy_version
       and (x.used_at is not null or x.expires_at > standfast.now())
       for update;
    if found and a.used_at is null then
        perform 1 from decisions d
          where d.thread_id = thread and d.approval_id = approval and d.granted = a.digest
            and may_vote_1(a, d.principal, d.groups, in_source, in_members)
         having count(distinct d.principal) >= greatest(a.required, in_required);
        if found then
            update approvals x set used_at = standfast.now() where x.thread_id = thread and x.id = approval;
        end if;
    end if;
    if not found then
        raise exception 'operation % of thread % has no valid grant', op, thread using errcode = 'SF003';
    end if;
end $$;

-- The ledger. An attempt begins only under the lease, with its grant checked and consumed where one is needed.
-- A recorded end is returned as it is. An attempt that began and never reported may be under way until its deadline:
-- 'waiting', until then. After that its outcome is unknown, and it is repeated only where the receiver deduplicates;
-- a read and a shared transaction are repeated at once. 'pending' goes on elsewhere; a completion is applied here.
create function begin_attempt_1(
    thread text, held bigint, op text, run uuid, in_kind text, in_name text, in_namespace text, in_turn integer,
    in_index integer, in_effect text, in_digest text, in_arguments bytea, in_worker text,
    needs_grant boolean, in_approval text, in_granted text, in_policy_version text, in_required integer,
    in_source text, in_members text[], timeout double precision, attempts_within double precision)
returns table (state text, attempt integer, result bytea, failure_class text, failure_message text,
               wait double precision, elapsed double precision, until timestamptz, looks integer, handle bytea)
language plpgsql as $$
declare
    o operations%rowtype;
    s record;
    first_start timestamptz;
begin
    perform assert_lease_1(thread, held);
    insert into operations (thread_id, id, run_id, kind, name, namespace, turn, index, effect, digest, arguments)
    values (thread, op, run, in_kind, in_name, in_namespace, in_turn, in_index, in_effect, in_digest, in_arguments)
    on conflict (thread_id, id) do nothing;
    select * into o from operations where thread_id = thread and id = op for update;
    if o.digest <> in_digest then
        raise exception 'operation % of thread % was recorded for another call', op, thread using errcode = 'SF004';
    end if;
    select * into s from standing_1(thread, op);
    if s.state in ('waiting', 'pending', 'overdue', 'succeeded', 'failed', 'reconciled')
       or s.state = 'unknown' and o.effect <> 'idempotent'  -- as it was begun, whatever a deploy says of it now
    then
        return query select s.state, s.attempt, s.result, s.failure_class, s.failure_message, 0::float8, 0::float8,
                            s.until, s.looks, s.handle;
        return;
    end if;
    if o.state = 'planned' and o.next_attempt_at > standfast.now() then  -- a delay outlives whoever began it
        return query select o.state, o.attempts, null::bytea, o.failure_class, o.failure_message,
                            extract(epoch from o.next_attempt_at - standfast.now())::float8, 0::float8,
                            null::timestamptz, 0, null::bytea;
        return;
    end if;
    if o.attempts > 0 then
        select min(x.started_at) into first_start from attempts x
         where x.thread_id = thread and x.operation_id = op and x.number > o.forgiven;
        update waits w set state = 'timed_out', ended_at = standfast.now()
         where w.thread_id = thread and w.id = 'retry-' || op || '-' || o.attempts and w.state = 'open';
    end if;
    if in_effect <> 'read' then
        perform refuse_in_fork_1(thread, in_name);
    end if;
    if needs_grant then
        perform use_grant_1(thread, op, in_digest, in_approval, in_granted, in_policy_version, in_required,
                            in_source, in_members);
    end if;
    update attempts x set state = 'abandoned', ended_at = standfast.now()
     where x.thread_id = thread and x.operation_id = op and x.state = 'executing';
    update operations x set state = 'executing', effect = in_effect, attempts = o.attempts + 1,
                            next_attempt_at = null, failure_class = null, failure_message = null, looks = 0,
                            look_at = null, handle = null, updated_at = standfast.now()
     where x.thread_id = thread and x.id = op;
    insert into attempts (thread_id, operation_id, number, epoch, worker, deadline)
    values (thread, op, o.attempts + 1, held, in_worker,
            least(standfast.now() + make_interval(secs => timeout),
                  coalesce(first_start, standfast.now()) + make_interval(secs => attempts_within)));
    return query select 'executing', o.attempts + 1, null::bytea, null::text, null::text, 0::float8,
                        coalesce(extract(epoch from standfast.now() - first_start), 0)::float8,
                        null::timestamptz, 0, null::bytea;
end $$;

-- new_state 'waiting': the operation waits for something and is called again, which is no failure of the attempt.
-- 'planned': it failed, and may be attempted again after `delay` seconds.
-- False: its end has been told from outside, and stands.
create function finish_attempt_1(
    thread text, held bigint, op text, in_attempt integer, new_state text, new_result bytea,
    new_failure_class text, new_failure_message text, delay double precision, new_retry_after double precision)
returns boolean language plpgsql as $$
begin
    perform assert_lease_1(thread, held);
    perform 1 from operations where thread_id = thread and id = op for update;
    perform 1 from completions where thread_id = thread and operation_id = op and attempt = in_attempt;
    if found then
        return false;
    end if;
    update operations
       set state = case when new_state = 'waiting' then 'planned' else new_state end,
           result = new_result, failure_class = new_failure_class,
           failure_message = new_failure_message, updated_at = standfast.now(),
           next_attempt_at = standfast.now() + make_interval(secs => delay)
     where thread_id = thread and id = op and state = 'executing' and attempts = in_attempt;
    update attempts
       set state = case when new_state in ('succeeded', 'waiting') then new_state else 'failed' end,
           ended_at = standfast.now(), failure_class = new_failure_class,
           failure_message = new_failure_message, retry_after = new_retry_after
     where thread_id = thread and operation_id = op and number = in_attempt and state in ('executing', 'pending');
    return true;
end $$;

-- A decision is one compare-and-set and the wake-up in one transaction; it takes no lease. Each sealed value of an
-- edit is given once for each row that keeps it.
-- verdict: done | counted (more votes are needed) | again | unknown | decided | expired | stale, or why this
-- principal may not: voted | not_allowed | not_a_member | requester | editor | no_reason.
create function decide_1(
    approval text, decision_id uuid, in_decision text, in_principal text, in_vouched boolean, in_groups text[],
    seen_digest text, in_reason text, in_response bytea, in_arguments bytea, approval_arguments bytea,
    operation_arguments bytea, new_operation_digest text, new_digest text, in_source text,
    in_members text[], in_verified_by text)
returns table (verdict text, state text, digest text) language plpgsql as $$
declare
    a approvals%rowtype;
    refused text;
    final boolean := true;
    new_state text := case in_decision when 'approve' then 'approved' when 'edit' then 'approved'
                      when 'respond' then 'answered' when 'withdraw' then 'withdrawn'
                      when 'happened' then 'settled' when 'did_not_happen' then 'settled' when 'abandon' then 'settled'
                      else 'rejected' end;
begin
    select * into a from approvals x where x.id = approval for update;
    if not found then
        return query select 'unknown', null::text, null::text;
        return;
    end if;
    perform 1 from decisions d where d.thread_id = a.thread_id and d.approval_id = approval and d.id = decision_id;
    if found then
        return query select 'again', a.state, a.digest;
        return;
    end if;
    if a.state = 'open' and a.expires_at <= standfast.now() then
        perform expire_approval_1(a.thread_id, approval);
        a.state := 'expired';
    end if;
    if a.state = 'expired' then
        return query select 'expired', a.state, a.digest;
        return;
    end if;
    if a.state <> 'open' and not (in_decision = 'withdraw' and a.state = 'approved' and a.used_at is null) then
        return query select 'decided', a.state, a.digest;
        return;
    end if;
    if a.digest <> seen_digest then
        return query select 'stale', a.state, a.digest;
        return;
    end if;
    refused := case
        when in_decision = 'withdraw' and a.kind <> 'call' then 'not_allowed'
        when in_decision = 'withdraw' and in_principal = a.requested_by then null
        when in_decision <> 'withdraw' and in_decision <> all(a.allowed) then 'not_allowed'
        when not is_approver_1(a, in_principal, in_groups, in_source, in_members) then 'not_a_member'
        when in_decision in ('reject', 'withdraw') then null
        when not a.requester_may_decide and in_principal = a.requested_by then 'requester'
        when in_decision = 'approve' and a.edit_needs_another and in_principal = a.editor then 'editor'
    end;
    if refused is null and a.reason_required and in_reason is null then
        refused := 'no_reason';
    end if;
    if refused is null and in_decision in ('approve', 'edit') then
        perform 1 from decisions d where d.thread_id = a.thread_id and d.approval_id = approval
                                     and d.principal = in_principal and d.granted is not null;
        refused := case when found then 'voted' end;
    end if;
    if refused is not null then
        return query select refused, a.state, a.digest;
        return;
    end if;
    if in_decision = 'edit' and (a.required > 1 or a.edit_needs_another) then
        new_state := 'edited';
    end if;
    insert into decisions (thread_id, approval_id, id, decision, principal, vouched, verified_by, groups,
                           self_approved, digest, granted, reason, arguments, response)
    values (a.thread_id, approval, decision_id, in_decision, in_principal, in_vouched, in_verified_by, in_groups,
            in_principal = a.requested_by, seen_digest,
            case when new_state = 'approved' then coalesce(new_digest, a.digest) end,
            in_reason, in_arguments, in_response);
    if in_decision = 'approve' then
        select count(distinct d.principal) >= a.required into final from decisions d
         where d.thread_id = a.thread_id and d.approval_id = approval and d.granted = a.digest
           and may_vote_1(a, d.principal, d.groups, in_source, in_members);
    end if;
    if not final then
        perform tell_1(a.thread_id);
        return query select 'counted', a.state, a.digest;
        return;
    end if;
    update approvals x
       set state = new_state, decided_at = standfast.now(),
           arguments = coalesce(approval_arguments, x.arguments),
           operation_digest = coalesce(new_operation_digest, x.operation_digest),
           digest = coalesce(new_digest, x.digest)
     where x.id = approval and x.thread_id = a.thread_id;
    if in_decision = 'edit' then
        update operations o set arguments = operation_arguments, digest = new_operation_digest,
                                updated_at = standfast.now()
         where o.thread_id = a.thread_id and o.id = a.operation_id and o.state = 'planned';
    end if;
    perform wake_for_approval_1(a.thread_id, approval, in_principal);
    return query select 'done', new_state, coalesce(new_digest, a.digest);
end $$;

create function expire_approval_1(thread text, approval text) returns void language plpgsql as $$
begin
    update approvals set state = 'expired', decided_at = standfast.now()
     where thread_id = thread and id = approval and state = 'open' and expires_at <= standfast.now();
    if found then
        insert into decisions (thread_id, approval_id, id, decision, principal, vouched, self_approved, digest)
        select thread_id, id, gen_random_uuid(), 'expire', 'the clock', false, false, digest
          from approvals where thread_id = thread and id = approval;
        perform wake_for_approval_1(thread, approval, 'the clock');
    end if;
end $$;
