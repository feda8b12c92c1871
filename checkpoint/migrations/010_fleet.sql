-- Standfast, the fleet grown: child threads, limits that all workers share, and schedules.
--
-- A child is a thread of its own whose first run belongs to a run of another thread. It is made in the transaction that
-- records it in its parent's ledger, under an id made from the parent's place, so that it is neither lost nor doubled.
-- Its end is told to whoever joins it in the transaction of that end. Who ends a child and who begins to join it meet
-- at an advisory lock; then rows are locked from the root of a family towards its leaves.
--
-- A limit has a key: tenant:T, graph:G, operation:O, model:M. Workers keep to those of tenants and graphs where they
-- claim, operations and models where an attempt begins. A slot counts as long as its thread's lease stands: whoever
-- dies gives it back. Rates are kept by the database's clock, as the time from which on the next call is free.
--
-- Global: flow_limits, flow_slots, schedules. Columns of a child's run lead with its own thread_id; what is found by its parent is found over an index.

alter table runs add column parent_thread_id text;      -- no reference: the parent may be deleted before
alter table runs add column output bytea;               -- what the parent gets; an artifact if it is large
alter table runs add column map_id text;                -- runs of one map or schedule come to their turn by position
alter table runs add column map_position bigint;
alter table runs add column map_width integer;          -- how many of them are unfinished at a time
create index runs_children on runs (parent_thread_id, parent_run_id) where parent_thread_id is not null;
create index runs_of_map on runs (map_id, map_position) where map_id is not null;

alter table runs add column priority integer not null default 0;
alter table threads add column priority integer not null default 0;  -- of its latest run: the greater, the sooner

alter table waits drop constraint waits_kind_check;
alter table waits add constraint waits_kind_check
    check (kind in ('approval', 'question', 'timer', 'event', 'completion', 'child'));
create index waits_for_children on waits (name) where state = 'open' and kind = 'child';

-- A child of a run, in its driver's transaction. What is not said it has from its parent. in_position: its place in
-- a map, of which in_width are unfinished at a time; the others are queued.
create function spawn_1(
    parent text, parent_run uuid, child text, child_run uuid, in_graph text, in_version text, in_input bytea,
    in_settings bytea, in_deadline timestamptz, in_budget bytea, in_map text, in_position integer, in_width integer)
returns void language plpgsql as $$
declare
    begins boolean := in_map is null or in_position < in_width;
begin
    insert into threads (id, tenant, owner, graph, version, fingerprint, run_id, priority, due_at)
    select child, t.tenant, t.owner, coalesce(in_graph, t.graph), coalesce(in_version, t.version),
           case when in_graph is null then t.fingerprint else '' end, child_run, t.priority,
           case when begins then standfast.now() end
      from threads t where t.id = parent;
    insert into runs (thread_id, id, number, tenant, parent_thread_id, parent_run_id, state, requested_by, vouched,
                      version, fingerprint, model, collection_id, input, settings, deadline, budget, priority,
                      map_id, map_position, map_width)
    select child, child_run, 1, r.tenant, parent, parent_run, case when begins then 'open' else 'queued' end,
           r.requested_by, r.vouched, t.version, t.fingerprint, r.model, r.collection_id, in_input, in_settings,
           least(r.deadline, in_deadline), in_budget, r.priority, in_map, in_position, in_width
      from runs r, threads t where r.thread_id = parent and r.id = parent_run and t.id = child;
    if begins then
        perform ring_1(child);
    end if;
end $$;

-- The locks of a run that ends, before those of rows: of those who join it, and of its map.
create function lock_family_1(thread text, run uuid) returns void language plpgsql as $$
declare
    r record;
begin
    select x.parent_thread_id, x.map_id into r from runs x
     where x.thread_id = thread and x.id = run and (x.parent_thread_id is not null or x.map_id is not null);
    if found then
        perform pg_advisory_xact_lock(hashtextextended('child:' || thread, 0));
        if r.map_id is not null then
            perform pg_advisory_xact_lock(hashtextextended('map:' || r.map_id, 0));
        end if;
    end if;
end $$;

-- One of the waits for children ends. The thread is woken when its question is answered: of a map, by the last.
create function end_join_1(waiting text, wait text, how text) returns void language plpgsql as $$
declare
    w waits%rowtype;
begin
    perform 1 from threads where id = waiting for no key update;
    perform end_wait_1(waiting, wait, 'answered', null);
    update waits set answered_by = how where thread_id = waiting and id = wait
    returning * into w;
    perform 1 from waits x
      where x.thread_id = waiting and x.interrupt_id = w.interrupt_id and x.state = 'open' and w.quorum = 'all';
    if not found then
        perform wake_1(waiting);
    end if;
end $$;

-- A child has ended: whoever joins it hears of it, and the next of its map comes to its turn.
create function tell_family_1(thread text, run uuid, how text) returns void language plpgsql as $$
declare
    w record;
    r record;
    next_thread text;
begin
    select x.map_id, x.map_width into r
      from runs x where x.thread_id = thread and x.id = run
       and (x.parent_thread_id is not null or x.map_id is not null);
    if not found then
        return;
    end if;
    for w in select thread_id, id from waits where kind = 'child' and name = thread and state = 'open'
              order by thread_id, id
    loop
        perform end_join_1(w.thread_id, w.id, how);
    end loop;
    while (select count(*) < r.map_width from runs where map_id = r.map_id and state in ('open', 'needs_attention'))
    loop
        update runs set state = 'open'
         where map_id = r.map_id and map_position = (
            select min(map_position) from runs where map_id = r.map_id and state = 'queued')
        returning thread_id into next_thread;
        exit when not found;
        perform wake_1(next_thread);
    end loop;
end $$;

-- What a cancelled run has begun elsewhere is cancelled too; each child does the same with its own.
create function cancel_children_1(thread text, run uuid) returns void language sql as $$
    update threads t set cancel_requested_at = coalesce(t.cancel_requested_at, standfast.now())
      from runs r
     where r.parent_thread_id = thread and r.parent_run_id = run and t.id = r.thread_id and t.run_id = r.id
       and r.state in ('open', 'needs_attention', 'queued');
    select wake_1(r.thread_id) from runs r
     where r.parent_thread_id = thread and r.parent_run_id = run
       and r.state in ('open', 'needs_attention', 'queued') order by r.thread_id;
$$;

-- The children that a thread is about to join, locked against their ends before any row is.
create function begin_join_1(children text[]) returns void language sql as $$
    select pg_advisory_xact_lock_shared(hashtextextended('child:' || c, 0)) from unnest(children) as c order by c;
$$;

-- Look for children that had ended, or are not there any more, before their wait was written.
create function match_joins_1(thread text) returns void language plpgsql as $$
declare
    w record;
begin
    for w in select x.id, r.state from waits x
               left join runs r on r.thread_id = x.name and r.parent_thread_id is not null
              where x.thread_id = thread and x.kind = 'child' and x.state = 'open'
                and (r.id is null or r.state in ('succeeded', 'failed', 'cancelled'))
              order by x.interrupt_id, x.position
    loop
        perform 1 from waits where thread_id = thread and id = w.id and state = 'open';
        if found then
            perform end_join_1(thread, w.id, coalesce(w.state, 'gone'));
        end if;
    end loop;
end $$;

create table flow_limits (
    key         text primary key,
    concurrency integer check (concurrency > 0),         -- at a time
    rate        integer check (rate > 0),                -- calls within any `per` seconds
    per         double precision check (per > 0),
    burst       integer check (burst > 0 and burst <= rate),  -- of those, how many may come at once
    queued      integer check (queued >= 0),             -- due runs that nobody drives yet
    free_at     timestamptz,                             -- when the burst will have been paid for
    changed_at  timestamptz not null default standfast.now(),
    changed_by  text not null,
    check ((rate is null) = (per is null) and (rate is null) = (burst is null))
);

create table flow_slots (
    key          text not null,
    thread_id    text not null,
    operation_id text not null,
    epoch        bigint not null,                        -- of the lease under which it is held
    taken_at     timestamptz not null default standfast.now(),
    primary key (key, thread_id, operation_id)
);
create index waits_for_slots on waits (name, opened_at) where state = 'open' and kind = 'timer' and name is not null;

-- Seconds between two calls, once the burst is spent: with it, no `per` seconds see more than `rate` calls.
create function spacing_1(l flow_limits) returns double precision language sql immutable as $$
    select l.per / greatest(l.rate - l.burst, 1);
$$;

-- Take a slot of each key, or of none. wait: seconds after which it is worth trying again; null is until somebody
-- gives a slot back. Those that wait already are counted in, so that not all come at once.
create function take_slots_1(thread text, held bigint, op text, keys text[])
returns table (granted boolean, key text, wait double precision) language plpgsql as $$
declare
    l flow_limits%rowtype;
    moment timestamptz;
    ahead double precision;
    longest double precision := 0;
    of_key text;
begin
    perform assert_lease_1(thread, held);
    perform 1 from flow_limits f where f.key = any(keys) order by f.key for update;
    moment := standfast.now();
    for l in select * from flow_limits f where f.key = any(keys) order by f.key loop
        if l.concurrency <= (select count(*) from flow_slots s join threads t on t.id = s.thread_id and t.epoch = s.epoch
                              where s.key = l.key and t.lease_expires_at > moment
                                and (s.thread_id, s.operation_id) <> (thread, op)) then
            return query select false, l.key, null::float8;
            return;
        end if;
        ahead := extract(epoch from l.free_at - moment) - (l.burst - 1) * spacing_1(l);
        if ahead > longest then
            longest := ahead;
            of_key := l.key;
        end if;
    end loop;
    if longest > 0 then
        return query select false, of_key, longest + spacing_1(f) * (
            select count(*) from waits w where w.name = 'flow:' || of_key and w.state = 'open' and w.kind = 'timer')
          from flow_limits f where f.key = of_key;
        return;
    end if;
    update flow_limits f
       set free_at = greatest(f.free_at, moment) + make_interval(secs => spacing_1(f))
     where f.key = any(keys) and f.rate is not null;
    insert into flow_slots (key, thread_id, operation_id, epoch)
    select f.key, thread, op, held from flow_limits f where f.key = any(keys) and f.concurrency is not null
    on conflict on constraint flow_slots_pkey do update set epoch = excluded.epoch, taken_at = standfast.now();
    return query select true, null::text, 0::float8;
end $$;

-- Give the slots of an attempt back, and wake who has waited longest for each.
create function give_slots_1(thread text, op text) returns void language plpgsql as $$
declare
    freed text;
    w record;
begin
    for freed in delete from flow_slots s where s.thread_id = thread and s.operation_id = op returning s.key loop
        select x.thread_id, x.id into w from waits x
         where x.name = 'flow:' || freed and x.state = 'open' and x.kind = 'timer' order by x.opened_at limit 1;
        if found then
            perform 1 from threads where id = w.thread_id for no key update;
            perform end_wait_1(w.thread_id, w.id, 'timed_out', null);
            perform wake_1(w.thread_id);
        end if;
    end loop;
end $$;

-- How many threads of a tenant or graph are driven now.
create function driven_1(key text) returns bigint language sql stable as $$
    select count(*) from threads t
     where t.lease_holder is not null and t.lease_expires_at > (select standfast.now())
       and key in ('tenant:' || t.tenant, 'graph:' || t.graph);
$$;

-- Whether a worker may drive this thread now; until its transaction ends nobody else takes the last place.
create function may_be_driven_1(thread text) returns boolean language plpgsql as $$
declare
    l record;
begin
    for l in select f.key, f.concurrency from flow_limits f, threads t
              where t.id = thread and f.key in ('tenant:' || t.tenant, 'graph:' || t.graph)
                and f.concurrency is not null order by f.key for update of f
    loop
        if driven_1(l.key) >= l.concurrency then
            return false;
        end if;
    end loop;
    return true;
end $$;

-- A place of a limited tenant or graph may be free: ring for the thread that is first in line.
create function ring_next_1(thread text) returns void language plpgsql as $$
declare
    l record;
    next_thread text;
begin
    for l in select f.key, t.tenant, t.graph from flow_limits f, threads t
              where t.id = thread and f.key in ('tenant:' || t.tenant, 'graph:' || t.graph)
                and f.concurrency is not null
    loop
        select x.id into next_thread from threads x
         where x.due_at <= (select standfast.now()) and x.lease_holder is null and x.id <> thread
           and l.key in ('tenant:' || x.tenant, 'graph:' || x.graph)
         order by x.priority desc, x.due_at limit 1;
        if found then
            perform ring_1(next_thread);
        end if;
    end loop;
end $$;

-- The bound on queued work that is reached, if one is. Those who come at the same moment may pass it together.
create function full_queue_1(in_tenant text, in_graph text) returns table (key text, bound integer)
language sql stable as $$
    select f.key, f.queued from flow_limits f
     where f.key in ('tenant:' || in_tenant, 'graph:' || in_graph)
       and f.queued <= (select count(*) from (
           select from threads t
            where t.due_at <= (select standfast.now()) and t.lease_holder is null
              and f.key in ('tenant:' || t.tenant, 'graph:' || t.graph) limit f.queued) as due)
     order by f.key limit 1;
$$;

-- What is due and that nobody drives, as a worker asks for it: by its graph and version, then by priority.
create index threads_ready on threads ((graph || '@' || version), priority desc, due_at)
    where lease_holder is null and due_at is not null;

-- The keys of tenants and graphs of which no worker may drive one more now.
create function at_limit_1() returns text[] language sql stable as $$
    select array(select f.key from flow_limits f
                  where f.concurrency is not null and (f.key like 'tenant:%' or f.key like 'graph:%')
                    and driven_1(f.key) >= f.concurrency);
$$;

-- Threads of these graphs (graph@version) that are due, the first by priority and then by age. Of each priority at
-- most `most`. The priorities that there are, few, are found one by one: so that what is due later, which may be
-- nearly all, is not read. The time is taken once, by a subquery: only so does the index bound what is read.
create function ready_1(graphs text[], most integer, full_keys text[]) returns table (id text) language sql stable as $$
    with recursive levels (served, priority) as (
        select s.served, (select max(t.priority) from threads t
                           where t.graph || '@' || t.version = s.served
                             and t.lease_holder is null and t.due_at is not null)
          from unnest(graphs) as s (served)
        union all
        select l.served, (select max(t.priority) from threads t
                           where t.graph || '@' || t.version = l.served and t.priority < l.priority
                             and t.lease_holder is null and t.due_at is not null)
          from levels l where l.priority is not null)
    select r.id from levels l cross join lateral (
        select t.id, t.priority, t.due_at from threads t
         where t.graph || '@' || t.version = l.served and t.priority = l.priority
           and t.lease_holder is null and t.due_at <= (select standfast.now())
           and not 'tenant:' || t.tenant = any(full_keys) and not 'graph:' || t.graph = any(full_keys)
         order by t.due_at limit most) as r
     order by r.priority desc, r.due_at;
$$;

-- A worker takes what is due, a thread for each of its holders. What somebody else is just taking or changing is left
-- out. again: the answer of the commit before was lost; what it took is known by its holders.
create function claim_next_1(graphs text[], holders text[], worker text, seconds double precision, again boolean)
returns table (id text, graph text, version text, run_id uuid, holder text, epoch bigint, head text, crashes integer,
               cancel_requested boolean)
language plpgsql as $$
declare
    bounded boolean := exists (select from flow_limits f where f.concurrency is not null);
    full_keys text[] := '{}';
    taken integer := 0;
    refused boolean;
    candidate text;
begin
    if again then
        return query
            select t.id, t.graph, t.version, t.run_id, t.lease_holder, c.epoch, c.head, c.crashes, c.cancel_requested
              from threads t, claim_lease_1(t.id, t.lease_holder, worker, seconds) c
             where t.lease_holder is not null and t.lease_holder = any(holders)
               and t.lease_expires_at > (select standfast.now()) - make_interval(secs => seconds);
        if found then
            return;
        end if;
    end if;
    if bounded then
        -- All bounds, in one order: two workers would wait for each other's.
        perform 1 from flow_limits f
          where f.concurrency is not null and (f.key like 'tenant:%' or f.key like 'graph:%') order by f.key for update;
        full_keys := at_limit_1();
    end if;
    <<looks>>
    for look in 1..3 loop
        refused := false;
        for candidate in select r.id from ready_1(graphs, 4 * cardinality(holders), full_keys) r
        loop
            exit when taken = cardinality(holders);
            perform 1 from threads t
              where t.id = candidate and t.lease_holder is null and t.due_at <= standfast.now()
                and t.graph || '@' || t.version = any(graphs) for update skip locked;
            if found and (not bounded or may_be_driven_1(candidate)) then
                taken := taken + 1;
                return query
                    select t.id, t.graph, t.version, t.run_id, holders[taken], c.epoch, c.head, c.crashes,
                           c.cancel_requested
                      from claim_lease_1(candidate, holders[taken], worker, seconds) c, threads t where t.id = candidate;
            elsif found then
                refused := true;
            end if;
        end loop;
        exit looks when not refused or taken = cardinality(holders);
        -- A tenant has come to its limit on the way: those behind it have their turn. A few looks are enough: what is
        -- still behind others then is found by the next bell.
        full_keys := at_limit_1();
    end loop;
end $$;

-- What is found by looking alone: threads whose driver has died, and those that have been due for a while without
-- anybody taking them, because a transaction that does not end keeps their rows locked.
create function overdue_1(graphs text[], patience double precision, most integer)
returns table (id text, graph text, version text) language sql stable as $$
    (select t.id, t.graph, t.version from threads t
      where t.lease_holder is not null and t.lease_expires_at < (select standfast.now())
        and t.graph || '@' || t.version = any(graphs)
      order by t.lease_expires_at limit most)
    union all
    (select t.id, t.graph, t.version
       from ready_1(graphs, most, at_limit_1()) r join threads t on t.id = r.id
      where t.due_at <= (select standfast.now()) - make_interval(secs => patience) limit most);
$$;

-- A schedule submits a run at each of its times. Whichever worker looks first fires it: the run, its client key
-- (schedule:NAME:TIME) and the schedule's next time are one transaction, so a due time has one run, whoever dies.
create table schedules (
    tenant        text not null,
    name          text not null,
    graph         text not null,
    version       text not null,
    fingerprint   text not null,
    cron          text not null,
    zone          text not null,
    catch_up      text not null check (catch_up in ('skip', 'last', 'all')),
    overlap       text not null check (overlap in ('skip', 'queue')),
    paused        boolean not null default false,
    requested_by  text not null,
    vouched       boolean not null,
    model         text,
    collection_id text,
    request       bytea not null,
    settings      bytea not null,
    deadline      interval,                              -- of each run, from its submission on
    budget        bytea,                                 -- sealed: the most that each run may spend
    priority      integer not null default 0,
    next_at       timestamptz not null,
    last_at       timestamptz,                           -- the due time that was looked at last
    last_verdict  text check (last_verdict in ('fired', 'queued', 'skipped', 'missed')),
    last_thread   text,
    created_at    timestamptz not null default standfast.now(),
    primary key (tenant, name)
);
create index schedules_due on schedules (next_at) where not paused;

-- One due time of a schedule. found: next_at as the caller saw it; in_next: what it becomes; thread null: the time is
-- missed and gets no run. verdict: fired | queued | skipped (an earlier run is unfinished) | missed | again (somebody
-- else has looked at it).
create function fire_1(
    in_tenant text, in_name text, found_at timestamptz, due timestamptz, in_next timestamptz, in_key text, thread text,
    run uuid, in_input bytea, in_settings bytea, in_budget bytea)
returns text language plpgsql as $$
declare
    s schedules%rowtype;
    turns text := 'schedule:' || in_tenant || ':' || in_name;
    busy boolean;
    verdict text := 'missed';
begin
    perform pg_advisory_xact_lock(hashtextextended('map:' || turns, 0));
    select * into s from schedules where tenant = in_tenant and name = in_name and next_at = found_at for update;
    perform 1 from runs where tenant = in_tenant and client_key = in_key;
    if s.name is null or found then
        return 'again';
    end if;
    if thread is not null then
        busy := exists (select from runs where map_id = turns and state in ('queued', 'open', 'needs_attention'));
        verdict := case when not busy then 'fired' when s.overlap = 'queue' then 'queued' else 'skipped' end;
    end if;
    if verdict in ('fired', 'queued') then
        insert into threads (id, tenant, owner, graph, version, fingerprint, run_id, priority, due_at)
        values (thread, s.tenant, s.requested_by, s.graph, s.version, s.fingerprint, run, s.priority,
                case when verdict = 'fired' then standfast.now() end);
        insert into runs (thread_id, id, number, tenant, client_key, state, requested_by, vouched, version, fingerprint,
                          model, collection_id, input, settings, deadline, budget, priority,
                          map_id, map_position, map_width)
        values (thread, run, 1, s.tenant, in_key, case when verdict = 'fired' then 'open' else 'queued' end,
                s.requested_by, s.vouched, s.version, s.fingerprint, s.model, s.collection_id, in_input, in_settings,
                standfast.now() + s.deadline, in_budget, s.priority,
                turns, extract(epoch from due)::bigint, case when s.overlap = 'queue' then 1 end);
        if verdict = 'fired' then
            perform ring_1(thread);
        end if;
    end if;
    update schedules set next_at = in_next, last_at = due, last_verdict = verdict,
                         last_thread = coalesce(thread, last_thread)
     where tenant = in_tenant and name = in_name;
    return verdict;
end $$;

-- What every run calls a few times. One plan serves all parameters; to plan each of their statements anew, as the
-- first five calls of a connection would, was half of what they cost.
alter function accept_run_2 set plan_cache_mode = force_generic_plan;
alter function claim_next_1 set plan_cache_mode = force_generic_plan;
alter function end_run_1 set plan_cache_mode = force_generic_plan;
alter function park_1 set plan_cache_mode = force_generic_plan;
