-- name: ended
-- Threads that may have ended long enough ago, those that have rested longest first; the page after (changed, id).
select t.id, t.graph, t.updated_at, r.state
  from threads t join runs r on r.thread_id = t.id and r.id = t.run_id
 where t.tenant = %(tenant)s and t.updated_at < %(before)s
   and (t.updated_at, t.id) > (%(changed)s, %(id)s) and t.updated_at >= %(changed)s
   and (%(graph)s::text is null or t.graph = %(graph)s) and r.state = any(%(states)s)
 order by t.updated_at, t.id limit %(most)s

-- name: count_ended
select count(*) as threads
  from threads t join runs r on r.thread_id = t.id and r.id = t.run_id
 where t.tenant = %(tenant)s and t.updated_at < %(before)s
   and (%(graph)s::text is null or t.graph = %(graph)s) and r.state = any(%(states)s)

-- name: long
-- Threads with a history of more than so many checkpoints, in the same order.
select t.id, t.graph, t.updated_at, coalesce(r.state, 'open') as state
  from threads t left join runs r on r.thread_id = t.id and r.id = t.run_id
 where t.tenant = %(tenant)s and t.updated_at < %(before)s
   and (t.updated_at, t.id) > (%(changed)s, %(id)s) and t.updated_at >= %(changed)s
   and (%(graph)s::text is null or t.graph = %(graph)s)
   and (%(states)s::text[] is null or r.state = any(%(states)s))
   and exists (select from checkpoints c where c.thread_id = t.id and c.checkpoint_ns = ''
                order by c.checkpoint_id desc offset %(keep)s limit 1)
 order by t.updated_at, t.id limit %(most)s

-- name: count_long
select count(*) as threads
  from threads t left join runs r on r.thread_id = t.id and r.id = t.run_id
 where t.tenant = %(tenant)s and t.updated_at < %(before)s
   and (%(graph)s::text is null or t.graph = %(graph)s)
   and (%(states)s::text[] is null or r.state = any(%(states)s))
   and exists (select from checkpoints c where c.thread_id = t.id and c.checkpoint_ns = ''
                order by c.checkpoint_id desc offset %(keep)s limit 1)

-- name: would_keep
select id as thread, kept_because_1(id, %(before)s, %(states)s) as kept from unnest(%(ids)s::text[]) as id

-- name: delete
select thread, kept from delete_threads_1(%(ids)s, %(before)s, %(states)s)

-- name: oldest_kept
select checkpoint_id, metadata -> 'counters_since_delta_snapshot' as since,
       (select min(checkpoint_id) from checkpoints where thread_id = %(thread)s and checkpoint_ns = '') as first
  from checkpoints
 where thread_id = %(thread)s and checkpoint_ns = '' order by checkpoint_id desc offset %(keep)s - 1 limit 1

-- name: take_unused
select take_unused_1(%(thread)s) as taken

-- name: cut
select cut_thread_1(%(thread)s, %(before)s, %(keep)s, %(first_read)s, %(at)s, %(channels)s::text[], %(tag)s,
                    %(blobs)s::bytea[], %(parts)s::text[]) as deleted

-- name: versions
select checkpoint -> 'channel_versions' as versions from checkpoints
 where thread_id = %(thread)s and checkpoint_ns = '' and checkpoint_id = %(at)s

-- name: sweep_documents
select sweep_documents_1(%(seconds)s, %(most)s) as documents
