-- name: assert_lease
select assert_lease_1(%s, %s)

-- name: put_step
-- Each insert reads `fenced`, so nothing is put before lease and head are found in order; an error undoes all.
with fenced as materialized (
    select assert_step_1(%(thread)b, %(epoch)b::bigint, %(check_head)b, %(namespace)b, %(parent)b, %(id)b,
                         %(forked)b)),
events as (
    insert into run_events (thread_id, run_id, epoch, first, last, events)
    select %(thread)b, %(run)b::uuid, %(epoch)b::bigint, %(first)b::int, %(last)b::int, %(events)b::bytea
      from fenced where %(run)b::uuid is not null
    on conflict do nothing),
writes as (
    insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob,
                                   parts)
    select %(thread)b, w ->> 0, w ->> 1, w ->> 2, w ->> 3, (w ->> 4)::int, w ->> 5,
           %(tag)b, substring(%(write_bytes)b::bytea from (w ->> 6)::int for (w ->> 7)::int),
           string_to_array(w ->> 8, ' ')
      from fenced, json_array_elements(convert_from(%(write_keys)b, 'UTF8')::json) as w
    on conflict do nothing),
blobs as (
    insert into checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob, parts)
    select %(thread)b, %(namespace)b, b ->> 0, b ->> 1, %(tag)b,
           substring(%(blob_bytes)b::bytea from (b ->> 2)::int for (b ->> 3)::int), string_to_array(b ->> 4, ' ')
      from fenced, json_array_elements(convert_from(%(blob_keys)b, 'UTF8')::json) as b
    on conflict do nothing)
insert into checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata, sealed)
select %(thread)b, %(namespace)b, %(id)b, %(parent)b, convert_from(%(checkpoint)b, 'UTF8')::jsonb,
       convert_from(%(metadata)b, 'UTF8')::jsonb, %(sealed)b
  from fenced
on conflict (thread_id, checkpoint_ns, checkpoint_id)
do update set checkpoint = excluded.checkpoint, metadata = excluded.metadata, sealed = excluded.sealed

-- name: put_write
insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob,
                               parts)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, string_to_array(%s, ' '))
on conflict do nothing

-- name: replace_write
insert into checkpoint_writes (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob,
                               parts)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, string_to_array(%s, ' '))
on conflict (thread_id, checkpoint_ns, checkpoint_id, task_id, idx)
do update set channel = excluded.channel, type = excluded.type, blob = excluded.blob, parts = excluded.parts

-- name: select
-- The parent's statement with the sealed column; it appends its own conditions.
select thread_id, checkpoint, checkpoint_ns, checkpoint_id, parent_checkpoint_id, metadata, sealed,
       (select array_agg(array[b.channel::bytea, b.type::bytea, b.blob])
          from jsonb_each_text(checkpoint -> 'channel_versions') as v
         cross join lateral (  -- with its limit, one look at the index for each channel, however many versions there are
            select b.channel, b.type, b.blob from checkpoint_blobs b
             where b.thread_id = checkpoints.thread_id and b.checkpoint_ns = checkpoints.checkpoint_ns
               and b.channel = v.key and b.version = v.value limit 1) as b) as channel_values,
       (select array_agg(array[w.task_id::bytea, w.channel::bytea, w.type::bytea, w.blob,
                               convert_to(w.task_path, 'UTF8'), w.idx::text::bytea])
          from checkpoint_writes w
         where w.thread_id = checkpoints.thread_id and w.checkpoint_ns = checkpoints.checkpoint_ns
           and w.checkpoint_id = checkpoints.checkpoint_id) as pending_writes
  from checkpoints

-- name: delete_checkpoints
delete from checkpoints where thread_id = %s

-- name: delete_blobs
delete from checkpoint_blobs where thread_id = %s

-- name: delete_writes
delete from checkpoint_writes where thread_id = %s

-- name: keep_latest
select cut_history_1(%s, 1)

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

-- name: drop_parts
select drop_parts_1(%s)

-- name: copy_thread
select copy_thread_1(%s, %s)

-- name: live_namespaces
-- What runs under the head was made after it.
with head as materialized (
    select checkpoint_id as id from checkpoints
     where thread_id = %(thread)s and checkpoint_ns = '' order by checkpoint_id desc limit 1)
select distinct c.checkpoint_ns
  from checkpoints c, head
 where c.thread_id = %(thread)s and c.checkpoint_id > head.id and starts_with(c.checkpoint_ns, %(prefix)s)
   and strpos(substr(c.checkpoint_ns, length(%(prefix)s) + 1), '|') = 0
   and c.metadata -> 'parents' ->> '' = head.id
 order by c.checkpoint_ns
