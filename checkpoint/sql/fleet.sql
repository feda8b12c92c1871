-- name: claim_due
select epoch, head, crashes, cancel_requested from claim_due_1(%(thread)s, %(holder)s, %(worker)s, %(seconds)s)

-- name: sweep
with late as (select id from overdue_1(%(graphs)s, %(most)s))
select id, ring_1(id) from late

-- name: register
insert into workers (id, name, graphs, concurrency) values (%(id)s, %(name)s, %(graphs)s, %(concurrency)s)
on conflict (id) do update set seen_at = standfast.now()

-- name: seen
update workers set seen_at = standfast.now() where id = %(id)s

-- name: leave
delete from workers where id = %(id)s

-- name: workers
select id::text, name, graphs, concurrency, started_at, seen_at,
       extract(epoch from standfast.now() - seen_at)::double precision as silent_seconds
  from workers order by started_at, id

-- name: forget_dead
delete from workers where seen_at < standfast.now() - make_interval(secs => %(seconds)s)

-- name: clear_bells
-- Bells of workers that died while they answered one; the threads themselves are found by the sweep.
delete from procrastinate_jobs j
 where j.status = 'doing' and not exists (
    select 1 from procrastinate_workers w
     where w.id = j.worker_id and w.last_heartbeat > pg_catalog.now() - make_interval(secs => %(seconds)s))

-- name: unserved
select t.graph, t.version, count(*) as runs, min(t.due_at) as oldest
  from threads t
 where t.due_at <= standfast.now() and t.lease_holder is null
   and not exists (select 1 from workers w
                    where t.graph || '@' || t.version = any(w.graphs)
                      and w.seen_at > standfast.now() - make_interval(secs => %(seconds)s))
 group by t.graph, t.version order by min(t.due_at)
