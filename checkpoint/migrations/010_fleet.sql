-- Standfast, the fleet grown: child threads.
--
-- A child is a thread of its own whose first run belongs to a run of another thread. It is made in the transaction that
-- records it in its parent's ledger, under an id made from the parent's place, so that it is neither lost nor doubled.
-- Its end is told to whoever joins it in the transaction of that end. Who ends a child and who begins to join it meet
-- at an advisory lock; then rows are locked from the root of a family towards its leaves.
--
-- Columns of a child's run lead with its own thread_id; what is found by its parent is found over an index.

alter table runs add column parent_thread_id text;      -- no reference: the parent may be deleted before
alter table runs add column output bytea;               -- what the parent gets; an artifact if it is large
alter table runs add column map_id text;                -- children of one map come to their turn by position
alter table runs add column map_position integer;
alter table runs add column map_width integer;          -- how many of them are unfinished at a time
create index runs_children on runs (parent_thread_id, parent_run_id) where parent_thread_id is not null;
create index runs_of_map on runs (map_id, map_position) where map_id is not null;

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
    insert into threads (id, tenant, owner, graph, version, fingerprint, run_id, due_at)
    select child, t.tenant, t.owner, coalesce(in_graph, t.graph), coalesce(in_version, t.version),
           case when in_graph is null then t.fingerprint else '' end, child_run,
           case when begins then standfast.now() end
      from threads t where t.id = parent;
    insert into runs (thread_id, id, number, tenant, parent_thread_id, parent_run_id, state, requested_by, vouched,
                      version, fingerprint, model, collection_id, input, settings, deadline, budget,
                      map_id, map_position, map_width)
    select child, child_run, 1, r.tenant, parent, parent_run, case when begins then 'open' else 'queued' end,
           r.requested_by, r.vouched, t.version, t.fingerprint, r.model, r.collection_id, in_input, in_settings,
           least(r.deadline, in_deadline), in_budget, in_map, in_position, in_width
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
    select x.map_id into r from runs x where x.thread_id = thread and x.id = run and x.parent_thread_id is not null;
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
      from runs x where x.thread_id = thread and x.id = run and x.parent_thread_id is not null;
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
