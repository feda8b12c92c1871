-- name: send
select send_messages_1(%(thread)s, %(run)s, %(ids)s::text[], %(topics)s::text[], %(keys)s::text[], %(payloads)s::bytea[])

-- name: send_run_end
select send_run_end_1(%(thread)s, %(run)s, %(id)s, %(payload)s)

-- name: register
insert into channels (name, topics) values (%(name)s, %(topics)s)
on conflict (name) do update set topics = excluded.topics

-- name: channels
select name, topics from channels order by name

-- name: forget
with gone as (delete from channels where name = %(name)s returning name)
delete from deliveries d where d.channel = %(name)s and d.state <> 'delivered'

-- name: claim
select seq, channel, attempt, claimed_at, id, thread_id, run_id::text, topic, key, payload, created_at
  from claim_deliveries_1(%(channels)s, %(claim)s, %(seconds)s, %(most)s)

-- name: finish
select finish_delivery_1(%(seq)s, %(channel)s, %(key)s, %(claim)s, %(state)s, %(failure)s, %(delay)s) as ours

-- name: list
select o.id, o.topic, o.key, o.thread_id, o.run_id::text, o.created_at, d.channel, d.state, d.attempts, d.failure,
       d.ended_at, case when d.due_at <> 'infinity' and d.state = 'pending' then d.due_at end as due_at
  from outbox o left join deliveries d on d.seq = o.seq
 where (%(state)s::text is null or d.state = %(state)s)
   and (%(thread)s::text is null or o.thread_id = %(thread)s)
   and (%(channel)s::text is null or d.channel = %(channel)s)
 order by o.seq desc, d.channel limit %(limit)s

-- name: get
select id, topic, key, thread_id, run_id::text, payload, created_at from outbox where id = %(id)s

-- name: of_message
select o.id, o.topic, o.key, o.thread_id, o.run_id::text, o.created_at, d.channel, d.state, d.attempts, d.failure,
       d.ended_at, case when d.due_at <> 'infinity' and d.state = 'pending' then d.due_at end as due_at
  from outbox o join deliveries d on d.seq = o.seq where o.id = %(id)s order by d.channel

-- name: resend
select resend_1(%(ids)s::text[], %(channel)s) as resent

-- name: drop_old
-- What is not delivered everywhere is kept, however old, and so is what an unfinished run might send again.
delete from outbox where seq in (
    select o.seq from outbox o
     where o.created_at < (select standfast.now() - make_interval(secs => %(seconds)s))
       and (select true from deliveries d where d.seq = o.seq and d.state <> 'delivered' limit 1) is null
       and not exists (select 1 from runs r where r.thread_id = o.thread_id and r.id = o.run_id
                          and r.state in ('queued', 'open', 'needs_attention'))
     order by o.created_at limit %(most)s)
