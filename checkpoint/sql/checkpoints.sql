-- name: assert_lease
select assert_lease_1(%s, %s)

-- name: assert_head
select assert_head_1(%s, %s, %s, %s, %s)

-- name: delete_checkpoints
delete from checkpoints where thread_id = %s

-- name: delete_blobs
delete from checkpoint_blobs where thread_id = %s

-- name: delete_writes
delete from checkpoint_writes where thread_id = %s

-- name: delete_runs
with gone as (
    delete from checkpoints where thread_id = %s and metadata ->> 'run_id' = any(%s)
    returning thread_id, checkpoint_ns, checkpoint_id)
delete from checkpoint_writes w using gone g
 where w.thread_id = g.thread_id and w.checkpoint_ns = g.checkpoint_ns and w.checkpoint_id = g.checkpoint_id

-- name: delete_orphans
delete from checkpoint_blobs b
 where b.thread_id = %s and not exists (
    select 1 from checkpoints c
     where c.thread_id = b.thread_id and c.checkpoint_ns = b.checkpoint_ns
       and c.checkpoint -> 'channel_versions' ->> b.channel = b.version)

-- name: copy_checkpoints
insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata)
select %s, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type, checkpoint, metadata
  from checkpoints where thread_id = %s
on conflict do nothing

-- name: copy_blobs
insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
select %s, checkpoint_ns, channel, version, type, blob
  from checkpoint_blobs where thread_id = %s
on conflict do nothing

-- name: copy_writes
insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob)
select %s, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob
  from checkpoint_writes where thread_id = %s
on conflict do nothing

-- name: live_namespaces
select distinct c.checkpoint_ns
  from checkpoints c
 where c.thread_id = %(thread)s and starts_with(c.checkpoint_ns, %(prefix)s)
   and strpos(substr(c.checkpoint_ns, length(%(prefix)s) + 1), '|') = 0
   and c.metadata -> 'parents' ->> '' = (
        select checkpoint_id from checkpoints r
         where r.thread_id = c.thread_id and r.checkpoint_ns = '' order by checkpoint_id desc limit 1)
 order by c.checkpoint_ns
