-- name: limited
select key from flow_limits

-- name: take
select granted, key, wait from take_slots_1(%(thread)s, %(epoch)s, %(id)s, %(keys)s)

-- name: give
select give_slots_1(%(thread)s, %(id)s)

-- name: set
insert into flow_limits (key, concurrency, rate, per, burst, queued, changed_by)
values (%(key)s, %(concurrency)s, %(rate)s, %(per)s, %(burst)s, %(queued)s, %(by)s)
on conflict (key) do update
   set concurrency = excluded.concurrency, rate = excluded.rate, per = excluded.per, burst = excluded.burst,
       queued = excluded.queued, changed_at = excluded.changed_at, changed_by = excluded.changed_by

-- name: clear
delete from flow_limits where key = %(key)s returning key

-- name: list
select f.key, f.concurrency, f.rate, f.per, f.burst, f.queued, f.changed_at, f.changed_by,
       case when f.key like 'tenant:%%' or f.key like 'graph:%%' then driven_1(f.key)
            else (select count(*) from flow_slots s join threads t on t.id = s.thread_id and t.epoch = s.epoch
                   where s.key = f.key and t.lease_expires_at > standfast.now()) end as used
  from flow_limits f order by f.key
