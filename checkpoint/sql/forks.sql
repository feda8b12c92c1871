-- name: fork
select * from fork_1(%(source)s, %(at)s, %(target)s, %(run)s, %(effects)s, %(altered)s, %(by)s, %(vouched)s, %(tenant)s,
                     %(deadline)s, %(budget)s, %(holder)s, %(worker)s, %(seconds)s)

-- name: open
with fenced as materialized (select assert_lease_1(%(thread)s, %(epoch)s))
update runs r set state = 'open', reason = null
  from fenced, forks f
 where f.thread_id = %(thread)s and r.thread_id = f.thread_id and r.id = f.run_id

-- name: undo
delete from threads t using forks f where t.id = %(thread)s and f.thread_id = t.id and t.epoch = %(epoch)s

-- name: get
select run_id::text, source_thread_id, source_run_id::text, checkpoint_id, lineage, effects,
       forked_by, vouched, forked_at
  from forks where thread_id = %(thread)s

-- name: inherited
select kind, namespace, turn, index, id, digest, state
  from operations where thread_id = %(thread)s and run_id = %(run)s and inherited_from is not null and kind <> 'step'

-- name: holds
select from operations where thread_id = %(thread)s and id = %(id)s and inherited_from is not null

-- name: history
-- Small values, joins and the packets of Send, which say what comes next; no other value is read.
select c.checkpoint_id, c.parent_checkpoint_id, c.checkpoint ->> 'ts' as at, c.metadata, c.sealed,
       c.checkpoint -> 'channel_versions' as versions,
       (select array_agg(array[b.channel::bytea, b.blob])
          from jsonb_each_text(c.checkpoint -> 'channel_versions') as v
          join checkpoint_blobs b
            on b.thread_id = c.thread_id and b.checkpoint_ns = '' and b.channel = v.key and b.version = v.value
         where v.key = '__pregel_tasks' or starts_with(v.key, 'join:')) as due
  from checkpoints c
 where c.thread_id = %(thread)s and c.checkpoint_ns = ''
   and (%(before)s::text is null or c.checkpoint_id < %(before)s)
 order by c.checkpoint_id desc limit %(limit)s

-- name: matching
-- Checkpoints are named by a prefix, as commits are.
select checkpoint_id from checkpoints
 where thread_id = %(thread)s and checkpoint_ns = '' and starts_with(checkpoint_id, %(prefix)s)
 order by checkpoint_id desc limit 2
