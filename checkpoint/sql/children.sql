-- name: spawn
select spawn_1(%(parent)s, %(parent_run)s, %(child)s, %(child_run)s, %(graph)s, %(version)s, %(input)s, %(settings)s,
               %(deadline)s, %(budget)s, %(map)s, %(position)s, %(width)s)

-- name: ends
select thread_id, id::text as run_id, reason, output from runs
 where (thread_id, id) in (select * from unnest(%(threads)s::text[], %(runs)s::uuid[]))

-- name: output
update runs set output = %(output)s where thread_id = %(thread)s and id = %(run)s and parent_thread_id is not null

-- name: of_run
select r.thread_id, r.id::text as run_id, r.state from runs r
 where r.parent_thread_id = %(thread)s and r.parent_run_id = %(run)s order by r.accepted_at, r.map_position, r.thread_id

-- name: above
-- The runs that a run descends from, with their budgets, the nearest first.
with recursive family as (
    select parent_thread_id, parent_run_id, 1 as distance from runs where thread_id = %(thread)s and id = %(run)s
     union all
    select r.parent_thread_id, r.parent_run_id, f.distance + 1
      from family f join runs r on r.thread_id = f.parent_thread_id and r.id = f.parent_run_id)
select r.thread_id, r.id::text as run_id, r.budget
  from family f join runs r on r.thread_id = f.parent_thread_id and r.id = f.parent_run_id order by f.distance

-- name: spent
-- The model calls of a run's descendants, those in flight included, and of the run itself if that is asked for.
with recursive family as (
    select thread_id, id from runs where thread_id = %(thread)s and id = %(run)s
     union all
    select r.thread_id, r.id
      from family f join runs r on r.parent_thread_id = f.thread_id and r.parent_run_id = f.id)
select o.thread_id, o.id, case when %(results)s and o.state = 'succeeded' and o.inherited_from is null then o.result end as result,
       (select count(*) from attempts a
         where a.thread_id = o.thread_id and a.operation_id = o.id and a.state <> 'waiting') as calls
  from family f join operations o on o.thread_id = f.thread_id and o.run_id = f.id and o.kind = 'model'
 where %(itself)s or f.id <> %(run)s
