-- What operators list: small columns of threads, runs and waits. No sealed value and no checkpoint is read.

-- name: threads
with known as (
    select t.id, t.uuid::text, t.tenant, t.graph, t.version, t.fingerprint, t.run_id::text, t.crashes, t.created_at, t.updated_at,
           r.reason,
           case when t.lease_expires_at > moment.now then t.lease_worker end as worker,
           coalesce(t.lease_expires_at <= moment.now, t.due_at <= moment.now, false) as due,
           case when t.lease_expires_at > moment.now then 'running'
                when r.state in ('succeeded', 'failed', 'cancelled', 'needs_attention') then r.state
                when t.due_at <= moment.now or t.lease_holder is not null then 'queued'
                when exists (select 1 from waits w where w.thread_id = t.id and w.state = 'open') then 'waiting'
                else 'queued' end as status
      from threads t
      left join runs r on r.thread_id = t.id and r.id = t.run_id
     cross join (select standfast.now() as now) as moment
     where t.tenant = %(tenant)s
       and (%(before)s::timestamptz is null or t.updated_at < %(before)s)
       and (%(graph)s::text is null or t.graph = %(graph)s))
select * from known where %(state)s::text is null or status = %(state)s
 order by updated_at desc, id limit %(limit)s

-- name: runs
with known as (
    select r.thread_id, r.id::text, r.number, t.graph, r.version, r.reason, r.requested_by, r.model, r.client_key,
           r.accepted_at, r.ended_at,
           case when r.state <> 'open' then r.state
                when t.lease_expires_at > moment.now then 'running'
                when t.due_at <= moment.now or t.lease_holder is not null then 'queued'
                when exists (select 1 from waits w where w.thread_id = t.id and w.state = 'open') then 'waiting'
                else 'queued' end as status
      from runs r join threads t on t.id = r.thread_id
     cross join (select standfast.now() as now) as moment
     where r.tenant = %(tenant)s
       and (%(thread)s::text is null or r.thread_id = %(thread)s)
       and (%(graph)s::text is null or t.graph = %(graph)s))
select * from known where %(state)s::text is null or status = %(state)s
 order by accepted_at desc, id limit %(limit)s

-- name: waits
select w.thread_id, w.id, w.run_id::text, w.kind, w.node, w.name, w.approval_id, w.opened_at, w.until, t.graph, t.version
  from waits w join threads t on t.id = w.thread_id
 where w.state = 'open' and t.tenant = %(tenant)s
   and (%(thread)s::text is null or w.thread_id = %(thread)s)
   and (%(graph)s::text is null or t.graph = %(graph)s)
   and (%(kind)s::text is null or w.kind = %(kind)s)
 order by w.opened_at, w.thread_id, w.position, w.id limit %(limit)s
