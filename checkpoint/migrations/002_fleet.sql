-- Standfast, the fleet: a doorbell for workers, queued runs, timers and events, and the events of a run.
--
-- The truth stays in threads.due_at and waits. A bell is a notification: it says that a graph and version has
-- something due, and is heard after the commit that made it so. With all bells lost the workers look by themselves.
--
-- Who changes the waits of a thread locks in this order: names of events, approvals, the thread's row, its waits.
--
-- events is global (an event is for whichever threads wait for it); run_events leads with thread_id.

alter table runs drop constraint runs_state_check;
alter table runs add constraint runs_state_check
    check (state in ('queued', 'open', 'needs_attention', 'succeeded', 'failed', 'cancelled'));
alter table runs add column input_digest text;          -- of the request as it was given: what a client key stands for
create index runs_queued on runs (thread_id, number) where state = 'queued';

alter table threads add column followed_until timestamptz;  -- somebody reads its events: tell of each until then
alter table threads add column awaited_until timestamptz;   -- somebody waits for its end: tell of rests until then

alter table waits drop constraint waits_kind_check;
alter table waits add constraint waits_kind_check check (kind in ('approval', 'question', 'timer', 'event', 'completion'));
alter table waits drop constraint waits_state_check;
alter table waits add constraint waits_state_check check (state in ('open', 'answered', 'timed_out', 'withdrawn'));
alter table waits add column interrupt_id text;         -- several waits can be one question of the graph
alter table waits add column position integer not null default 0;
alter table waits add column quorum text not null default 'first' check (quorum in ('first', 'all'));
alter table waits add column name text;
alter table waits add column match text;                -- a digest; null takes every event of the name
alter table waits add column until timestamptz;         -- absolute: a crash does not move it
alter table waits add column event_seq bigint;
alter table waits add column answer_id uuid;            -- made by whoever answers: one that is sent again is recognised
create index waits_for_events on waits (name, match) where state = 'open' and kind = 'event';
create index waits_until on waits (thread_id, until) where state = 'open' and until is not null;
create index waits_consumed on waits (event_seq, thread_id) where event_seq is not null;

create table events (
    seq        bigint generated always as identity primary key,
    tenant     text not null default 'default',
    id         text not null,                           -- the sender's: sending it again changes nothing
    name       text not null,
    match      text,
    digest     text not null,                           -- of the payload: the same id with another one is refused
    payload    bytea not null,
    emitted_by text not null,
    emitted_at timestamptz not null default standfast.now(),
    expires_at timestamptz not null,
    unique (tenant, id)
);
create index events_by_name on events (tenant, name, seq);
create index events_by_match on events (tenant, name, match, seq);
create index events_expiry on events (expires_at);

create table run_events (
    thread_id text not null references threads (id) on delete cascade,
    run_id    uuid not null,
    first     integer not null,                         -- the events first..last of the run, without gaps; only
    last      integer not null,                         -- the lease's holder writes, one row for each commit
    epoch     bigint not null,                          -- whose attempt it was
    events    bytea not null,
    at        timestamptz not null default standfast.now(),
    primary key (thread_id, run_id, last)
);

create table workers (
    id          uuid primary key,                       -- one incarnation of a process, never a name
    name        text not null,
    graphs      text[] not null,                        -- graph@version
    concurrency integer not null,
    started_at  timestamptz not null default standfast.now(),
    seen_at     timestamptz not null default standfast.now()
);

-- Ring for whoever serves the thread's graph and version.
create function ring_1(thread text) returns void language sql as $$
    select pg_notify('standfast_due', graph || '@' || version) from threads where id = thread;
$$;

-- Tell those who follow a thread or wait for its end. Nobody does for most threads: their commits stay free of the
-- queue's lock.
create function tell_1(thread text) returns void language plpgsql as $$
begin
    perform 1 from threads where id = thread and greatest(followed_until, awaited_until) > standfast.now();
    if found then
        perform pg_notify('standfast_threads', thread);
    end if;
end $$;

create function wake_1(thread text) returns void language plpgsql as $$
begin
    update threads set due_at = standfast.now(), updated_at = standfast.now() where id = thread;
    perform ring_1(thread);
end $$;

create function wake_for_approval_1(thread text, approval text, who text) returns void
language sql as $$
    select wake_1(thread);
    update waits set state = 'answered', answered_by = who, ended_at = standfast.now()
     where thread_id = thread and approval_id = approval and state = 'open';
$$;

create function answer_1(
    thread text, wait text, in_id uuid, in_answer bytea, who text, in_verified_by text, in_sha256 text)
returns table (verdict text, answered_by text) language plpgsql as $$
declare
    w waits%rowtype;
begin
    perform 1 from threads where id = thread for no key update;
    select * into w from waits where thread_id = thread and id = wait and kind = 'question' for update;
    if not found then
        return query select 'unknown', null::text;
        return;
    end if;
    if w.answer_id = in_id then
        return query select 'done', who;
        return;
    end if;
    if w.state <> 'open' then
        return query select w.state, w.answered_by;
        return;
    end if;
    update waits
       set state = 'answered', answer = in_answer, answer_id = in_id, answered_by = who, verified_by = in_verified_by,
           answer_sha256 = in_sha256, ended_at = standfast.now()
     where thread_id = thread and id = wait;
    perform wake_1(thread);
    return query select 'done', who;
end $$;

create function park_1(thread text, held bigint, wake_at timestamptz) returns boolean
language plpgsql as $$
begin
    perform assert_lease_1(thread, held);
    update threads
       set lease_holder = null, lease_worker = null, lease_expires_at = null, crashes = 0,
           due_at = wake_at, updated_at = standfast.now()
     where id = thread and epoch = held and cancel_requested_at is null
       and (due_at is null or due_at > standfast.now()) and (wake_at is null or wake_at > standfast.now());
    if not found then
        return false;
    end if;
    perform ring_next_1(thread);
    perform tell_1(thread);
    return true;
end $$;

-- The lease is given up with work left: the next one may come at once.
create function release_lease_1(thread text, held bigint) returns boolean language plpgsql as $$
begin
    update threads set lease_holder = null, lease_worker = null, lease_expires_at = null,
                       due_at = coalesce(due_at, standfast.now())
     where id = thread and epoch = held and lease_holder is not null;
    if not found then
        return false;
    end if;
    perform ring_1(thread);
    perform ring_next_1(thread);
    return true;
end $$;

-- What a run has begun and will not finish. Of a call that must not be repeated, and of work elsewhere that nobody
-- waits for any more (over), nobody knows then whether it took effect: the names of those are returned.
create function abandon_attempts_1(thread text, run uuid, over boolean) returns text language plpgsql as $$
begin
    update attempts a set state = 'abandoned', ended_at = standfast.now()
      from operations o
     where o.thread_id = thread and o.run_id = run and o.state = 'executing'
       and a.thread_id = thread and a.operation_id = o.id and (a.state = 'executing' or a.state = 'pending' and over);
    update operations
       set state = case when effect = 'at_most_once' or handle is not null then 'unknown' else 'planned' end,
           updated_at = standfast.now()
     where thread_id = thread and run_id = run and state = 'executing' and (handle is null or over);
    return (select string_agg(name || ' (' || id || ')', ', ' order by created_at, id)
              from operations where thread_id = thread and run_id = run and state = 'unknown');
end $$;

-- A run is closed with what it left open, and the next one opens with its own version. One that stops for a person
-- after its cancellation was asked for is cancelled: nobody would come for it again.
create function end_run_1(
    thread text, held bigint, run uuid, new_state text, new_reason text, new_outcome bytea, at_limit text)
returns void language plpgsql as $$
declare
    next_run runs%rowtype;
    in_doubt text;
    moment timestamptz := standfast.now();  -- one for all that is withdrawn: a run that is opened again finds it by it
begin
    perform 1 from runs
      where thread_id = thread and id = run and ended_epoch = held and state in (new_state, 'cancelled');
    if found then
        return;
    end if;
    perform lock_family_1(thread, run);
    perform assert_lease_1(thread, held);
    perform 1 from threads where id = thread and lease_holder is null;
    if found then
        return;  -- sent again, and somebody has opened the run again in between
    end if;
    perform 1 from threads where id = thread and cancel_requested_at is not null;
    if found and new_state = 'needs_attention' then
        new_state := 'cancelled';
        new_reason := concat_ws('; ', 'cancelled on request', new_reason);
    end if;
    in_doubt := abandon_attempts_1(thread, run, new_state <> 'needs_attention');
    if in_doubt is not null and new_state <> 'succeeded' and coalesce(strpos(new_reason, in_doubt), 0) = 0 then
        new_reason := concat_ws('; ', new_reason, 'it is not known whether ' || in_doubt || ' took effect');
    end if;
    update runs
       set state = new_state, reason = new_reason, outcome = coalesce(new_outcome, outcome),
           ended_epoch = held, limit_reached = at_limit,
           ended_at = case when new_state = 'needs_attention' then null else moment end
     where thread_id = thread and id = run and state in ('queued', 'open', 'needs_attention');
    if new_state <> 'needs_attention' then
        perform tell_family_1(thread, run, new_state);
        update approvals set state = 'withdrawn', decided_at = moment
         where thread_id = thread and state = 'open';
        update threads set cancel_requested_at = null where id = thread;
        update waits set state = 'withdrawn', ended_at = moment
         where thread_id = thread and state = 'open';
        update runs set state = 'open' where thread_id = thread and id = (
            select id from runs where thread_id = thread and state = 'queued' order by number limit 1)
        returning * into next_run;
    end if;
    update threads
       set lease_holder = null, lease_worker = null, lease_expires_at = null, crashes = 0,
           run_id = coalesce(next_run.id, run_id), version = coalesce(next_run.version, version),
           fingerprint = coalesce(next_run.fingerprint, fingerprint),
           priority = coalesce(next_run.priority, priority),
           due_at = case when next_run.id is not null then standfast.now() end,
           updated_at = standfast.now()
     where id = thread;
    if next_run.id is not null then
        perform ring_1(thread);
    end if;
    if new_state = 'cancelled' then
        perform cancel_children_1(thread, run);
    end if;
    perform ring_next_1(thread);
    perform tell_1(thread);
end $$;

-- A thread whose id is a UUID has no second one.
create function uuid_1(thread text) returns uuid language sql immutable as $$
    select case when thread ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' then thread::uuid end;
$$;

-- Withdraw what a run asks people to decide, because somebody has something else to say.
create function withdraw_open_1(thread text, run uuid, who text, in_vouched boolean, in_verified_by text)
returns void language plpgsql as $$
declare
    a approvals%rowtype;
begin
    for a in select * from approvals
              where thread_id = thread and run_id = run and state = 'open' and kind = 'call' order by id for update
    loop
        insert into decisions (thread_id, approval_id, id, decision, principal, vouched, verified_by, self_approved,
                               digest, reason)
        values (thread, a.id, gen_random_uuid(), 'withdraw', who, in_vouched, in_verified_by, who = a.requested_by,
                a.digest, 'a new message came');
        update approvals x set state = 'withdrawn', decided_at = standfast.now() where x.thread_id = thread and x.id = a.id;
        perform wake_for_approval_1(thread, a.id, who);
    end loop;
end $$;

-- Accept a run, for this process (holder) or for the fleet. verdict: accepted | queued | again (this very run) |
-- same (the client key's run) | other_input (the client key stands for another request) | busy | other_graph |
-- other_tenant | full (known_graph is the key that is full, run_number its bound).
create function accept_run_2(
    thread text, in_tenant text, in_owner text, in_graph text, in_version text, in_fingerprint text,
    run uuid, in_requested_by text, in_vouched boolean, in_verified_by text, in_model text, in_collection text,
    in_input bytea, in_settings bytea, in_deadline timestamptz, in_budget bytea, in_priority integer,
    in_client_key text, in_input_digest text, on_busy text, holder text, worker text, seconds double precision)
returns table (verdict text, open_thread text, open_run uuid, open_state text, known_graph text,
               run_number integer, epoch bigint, head text)
language plpgsql as $$
declare
    t threads%rowtype;
    current runs%rowtype;
    known runs%rowtype;
    number_now integer;
    busy boolean;
begin
    if in_client_key is not null then
        -- Two senders of one key meet here, also before either's run exists.
        perform pg_advisory_xact_lock(hashtextextended('client_key:' || in_tenant || ':' || in_client_key, 0));
        select * into known from runs where tenant = in_tenant and client_key = in_client_key;
        if found and known.id <> run then
            return query select case when known.input_digest = in_input_digest then 'same' else 'other_input' end,
                                known.thread_id, known.id, known.state, null::text, known.number,
                                null::bigint, null::text;
            return;
        end if;
    end if;
    if holder is null and not exists (select from runs r where r.id = run) then
        return query select 'full', null::text, null::uuid, null::text, f.key, f.bound, null::bigint, null::text
                       from full_queue_1(in_tenant, in_graph) f;
        if found then
            return;
        end if;
    end if;
    loop  -- again if the thread was deleted between the two
        insert into threads (id, uuid, tenant, owner, graph, version, fingerprint)
        values (thread, coalesce(uuid_1(thread), gen_random_uuid()), in_tenant, in_owner, in_graph, in_version,
                in_fingerprint)
        on conflict (id) do nothing;
        if on_busy = 'withdraw' then
            perform 1 from approvals where thread_id = thread and state = 'open' order by id for update;
        end if;
        select * into t from threads where id = thread for no key update;
        exit when found;
    end loop;
    select * into known from runs r where r.thread_id = thread and r.id = run;
    if found then
        -- Sent again because the answer was lost: the commit may have taken the lease for this very holder.
        return query
            with claimed as (select * from claim_lease_1(thread, holder, worker, seconds) where t.lease_holder = holder)
            select 'again', thread, run, known.state, t.graph, known.number, c.epoch, c.head
              from (values (1)) as one left join claimed c on true;
        return;
    end if;
    select * into current from runs where thread_id = thread and id = t.run_id;
    busy := current.state in ('open', 'needs_attention');
    if t.tenant <> in_tenant then
        return query select 'other_tenant', thread, current.id, current.state, t.graph, current.number,
                            null::bigint, null::text;
        return;
    end if;
    if t.run_id is not null and t.graph <> in_graph then
        return query select 'other_graph', thread, current.id, current.state, t.graph, current.number,
                            null::bigint, null::text;
        return;
    end if;
    -- Behind a run that needs attention nothing would come to its turn.
    if busy and (on_busy = 'refuse' or on_busy in ('queue', 'withdraw') and current.state = 'needs_attention') then
        return query select 'busy', thread, current.id, current.state, t.graph, current.number,
                            null::bigint, null::text;
        return;
    end if;
    select coalesce(max(number), 0) + 1 into number_now from runs where thread_id = thread;
    insert into runs (thread_id, id, number, tenant, version, fingerprint, client_key, input_digest, state,
                      requested_by, vouched, model, collection_id, input, settings, deadline, budget, priority)
    values (thread, run, number_now, in_tenant, in_version, in_fingerprint, in_client_key, in_input_digest,
            case when busy then 'queued' else 'open' end, in_requested_by, in_vouched, in_model, in_collection,
            in_input, in_settings, in_deadline, in_budget, in_priority);
    if busy then
        if on_busy = 'interrupt' then
            update threads x set cancel_requested_at = coalesce(x.cancel_requested_at, standfast.now())
             where x.id = thread;
            perform wake_1(thread);
        elsif on_busy = 'withdraw' then
            perform withdraw_open_1(thread, current.id, in_requested_by, in_vouched, in_verified_by);
        end if;
        return query select 'queued', thread, run, 'queued', in_graph, number_now, null::bigint, null::text;
        return;
    end if;
    update threads x
       set run_id = run, version = in_version, fingerprint = in_fingerprint, cancel_requested_at = null,
           priority = in_priority, crashes = 0, due_at = standfast.now(), updated_at = standfast.now()
     where x.id = thread;
    if holder is null then
        perform ring_1(thread);
        return query select 'accepted', thread, run, 'open', in_graph, number_now, null::bigint, null::text;
        return;
    end if;
    return query
        with claimed as (select * from claim_lease_1(thread, holder, worker, seconds))
        select 'accepted', thread, run, 'open', in_graph, number_now, c.epoch, c.head
          from (values (1)) as one left join claimed c on true;
end $$;

-- A worker's claim: only if something is due, or the last driver has died.
create function claim_due_1(thread text, holder text, worker text, seconds double precision)
returns table (epoch bigint, head text, crashes integer, cancel_requested boolean) language plpgsql as $$
begin
    perform 1 from threads t
      where t.id = thread
        and (t.due_at <= standfast.now() or t.lease_expires_at < standfast.now()
             or t.lease_holder = claim_due_1.holder)
        for no key update;
    if found and may_be_driven_1(thread) then
        return query select * from claim_lease_1(thread, holder, worker, seconds);
    end if;
end $$;

-- Ends the waits of one question: the first that ends withdraws the others, where the first is enough.
create function end_wait_1(thread text, wait text, new_state text, event bigint) returns void
language plpgsql as $$
declare
    w waits%rowtype;
begin
    update waits set state = new_state, event_seq = event, ended_at = standfast.now()
     where thread_id = thread and id = wait and state = 'open'
    returning * into w;
    if found and w.quorum = 'first' then
        update waits set state = 'withdrawn', ended_at = standfast.now()
         where thread_id = thread and interrupt_id = w.interrupt_id and id <> wait and state = 'open';
    end if;
end $$;

-- Time-outs and timers of one thread whose time has come.
create function end_due_waits_1(thread text, held bigint) returns void language plpgsql as $$
declare
    w record;
begin
    perform assert_lease_1(thread, held);
    perform 1 from threads where id = thread for no key update;
    for w in select id from waits
              where thread_id = thread and state = 'open' and until <= standfast.now() order by until, position
    loop
        perform end_wait_1(thread, w.id, 'timed_out', null);
    end loop;
end $$;

-- The locks of a thread that is about to wait for events of these names. Emitters of the names are kept out until
-- this transaction ends, so that either they see the wait or the wait sees their event. False if the thread is parked
-- already: this is a transaction that is sent again, because its answer was lost.
create function begin_park_1(thread text, held bigint, names text[]) returns boolean
language plpgsql as $$
declare
    name text;
begin
    for name in select distinct t.tenant || ':' || n.name from unnest(names) as n (name), threads t
                 where t.id = thread order by 1
    loop
        perform pg_advisory_xact_lock_shared(hashtextextended('event:' || name, 0));
    end loop;
    perform assert_lease_1(thread, held);
    perform 1 from threads where id = thread and lease_holder is not null for no key update;
    return found;
end $$;

-- Look for events that came before their waits, each once for each thread. One that came too late does not count.
create function match_waits_1(thread text) returns void language plpgsql as $$
declare
    w record;
    found_seq bigint;
begin
    for w in select waits.id, waits.name, waits.match, waits.until, tenant
               from waits join threads on threads.id = waits.thread_id
              where thread_id = thread and state = 'open' and kind = 'event' order by opened_at, interrupt_id, position
    loop
        -- The first of several may have ended in an earlier round of this loop.
        perform 1 from waits where thread_id = thread and id = w.id and state = 'open';
        continue when not found;
        -- Two ways in, of which one is empty: no index serves "this match, or any".
        select e.seq into found_seq
          from (select * from events e where w.match is null and e.tenant = w.tenant and e.name = w.name
                union all
                select * from events e where e.tenant = w.tenant and e.name = w.name and e.match = w.match) as e
         where e.expires_at > standfast.now() and (w.until is null or e.emitted_at <= w.until)
           and not exists (select 1 from waits c where c.thread_id = thread and c.event_seq = e.seq)
         order by e.seq limit 1;
        if found then
            perform end_wait_1(thread, w.id, 'answered', found_seq);
            update threads set due_at = standfast.now() where id = thread;
        end if;
    end loop;
end $$;

-- Emit, once per sender's id. verdict: emitted | again | other_payload.
create function emit_1(
    in_tenant text, in_id text, in_name text, in_match text, in_digest text, in_payload bytea, who text,
    ttl double precision)
returns table (verdict text, woken integer) language plpgsql as $$
declare
    known events%rowtype;
    new_seq bigint;
    waiting text;
    chosen text;
    count_woken integer := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('event_id:' || in_tenant || ':' || in_id, 0));
    perform pg_advisory_xact_lock(hashtextextended('event:' || in_tenant || ':' || in_name, 0));
    select * into known from events where tenant = in_tenant and id = in_id;
    if found then
        return query select case when known.digest = in_digest and known.name = in_name then 'again'
                                 else 'other_payload' end, 0;
        return;
    end if;
    insert into events (tenant, id, name, match, digest, payload, emitted_by, expires_at)
    values (in_tenant, in_id, in_name, in_match, in_digest, in_payload, who,
            standfast.now() + make_interval(secs => ttl))
    returning seq into new_seq;
    -- One wait of each thread: the one that began first.
    for waiting in select w.thread_id
                     from (select thread_id from waits
                            where state = 'open' and kind = 'event' and name = in_name and match is null
                            union
                           select thread_id from waits
                            where state = 'open' and kind = 'event' and name = in_name and match = in_match) as w
                    where (select t.tenant from threads t where t.id = w.thread_id) = in_tenant
                    order by 1
    loop
        perform 1 from threads where id = waiting for no key update;
        select w.id into chosen from waits w
         where w.thread_id = waiting and w.state = 'open' and w.kind = 'event' and w.name = in_name
           and (w.match is null or w.match = in_match) and (w.until is null or w.until > standfast.now())
         order by w.opened_at, w.interrupt_id, w.position limit 1;
        if found then
            perform end_wait_1(waiting, chosen, 'answered', new_seq);
            perform wake_1(waiting);
            count_woken := count_woken + 1;
        end if;
    end loop;
    return query select 'emitted', count_woken;
end $$;

-- Append to a run's events, with the numbers that the one writer has given them; sent again it changes nothing.
create function append_events_1(
    thread text, run uuid, held bigint, first_seq integer, last_seq integer, sealed bytea)
returns void language plpgsql as $$
begin
    insert into run_events (thread_id, run_id, first, last, epoch, events)
    values (thread, run, first_seq, last_seq, held, sealed)
    on conflict do nothing;
    perform pg_notify('standfast_threads', thread) from threads where id = thread and followed_until > standfast.now();
end $$;

-- The fence of a step, and the check of its head, in one call; it also tells those who follow the thread.
create function assert_step_1(
    thread text, held bigint, check_head boolean, namespace text, parent text, new_id text, forked boolean)
returns void language plpgsql as $$
declare
    followed boolean;
begin
    select followed_until > standfast.now() into followed
      from threads where id = thread and epoch = held for key share;
    if not found then
        raise exception 'the lease of thread % at epoch % is lost', thread, held using errcode = 'SF001';
    end if;
    if check_head then
        perform assert_head_1(thread, namespace, parent, new_id, forked);
    end if;
    if followed then
        perform pg_notify('standfast_threads', thread);
    end if;
end $$;
