-- name: emit
select verdict, woken from emit_1(%(tenant)s, %(id)s, %(name)s, %(match)s, %(digest)s, %(payload)s, %(who)s, %(ttl)s)

-- name: by_seq
select seq, tenant, id, name, payload, emitted_by, emitted_at from events where seq = any(%(seqs)s)

-- name: drop_expired
delete from events
 where seq in (
    select e.seq from events e
     where e.expires_at <= (select standfast.now())
       and not exists (select 1 from waits w join runs r on r.thread_id = w.thread_id and r.id = w.run_id
                        where w.event_seq = e.seq and r.state in ('open', 'needs_attention'))
     order by e.expires_at limit %(most)s)

-- name: append
select append_events_1(%s, %s, %s, %s, %s, %s)

-- name: last
select coalesce(max(last), 0) as seq from run_events where thread_id = %(thread)s and run_id = %(run)s

-- name: read
select first, last, epoch, events, at from run_events
 where thread_id = %(thread)s and run_id = %(run)s and last > %(after)s order by last limit %(limit)s

-- name: follow
update threads
   set followed_until = case when id = any(%(read)s) then standfast.now() + make_interval(secs => %(seconds)s)
                             else followed_until end,
       awaited_until = standfast.now() + make_interval(secs => %(seconds)s)
 where id = any(%(threads)s)
