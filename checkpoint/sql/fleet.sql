-- name: overdue
select id, graph, version from overdue_1(%(graphs)s, %(patience)s, %(most)s)

-- name: register
insert into workers (id, name, graphs, concurrency) values (%(id)s, %(name)s, %(graphs)s, %(concurrency)s)
on conflict (id) do update set seen_at = standfast.now()

-- name: leave
delete from workers where id = %(id)s

-- name: workers
select id::text, name, graphs, concurrency, started_at, seen_at,
       extract(epoch from standfast.now() - seen_at)::double precision as silent_seconds
  from workers order by started_at, id

-- name: forget_dead
delete from workers where seen_at < standfast.now() - make_interval(secs => %(seconds)s)

-- name: backlog
select (select count(*) from approvals where state = 'open') as approvals, count(*) as due,
       coalesce(extract(epoch from standfast.now() - min(due_at)), 0)::double precision as age
  from threads where due_at <= (select standfast.now()) and lease_holder is null

-- name: unserved
select graph, version, count(*) as runs, min(since) as oldest,
       extract(epoch from standfast.now() - min(since))::double precision as oldest_seconds
  from (select t.graph, t.version, t.due_at as since from threads t
         where t.due_at <= (select standfast.now()) and t.lease_holder is null
         union all
        select t.graph, t.version, t.lease_expires_at from threads t
         where t.lease_expires_at < (select standfast.now()) and t.lease_holder is not null) as late
 where not exists (select 1 from workers w
                    where late.graph || '@' || late.version = any(w.graphs)
                      and w.seen_at > standfast.now() - make_interval(secs => %(seconds)s))
 group by graph, version order by min(since)

-- name: served
select exists (select from workers
                where %(graph)s = any(graphs) and seen_at > standfast.now() - make_interval(secs => %(seconds)s)) as served

-- name: blockers
-- Who keeps statements of ours waiting on a lock: the first of each queue, not those who wait as we do.
select distinct b.pid, coalesce(nullif(b.application_name, ''), 'a program without a name') as program, b.state,
       extract(epoch from pg_catalog.clock_timestamp() - b.xact_start)::double precision as seconds
  from pg_stat_activity w
 cross join lateral unnest(pg_blocking_pids(w.pid)) as ahead (pid)
  join pg_stat_activity b on b.pid = ahead.pid
 where w.datname = current_database() and w.wait_event_type = 'Lock' and w.application_name = %(program)s
   and cardinality(pg_blocking_pids(b.pid)) = 0
