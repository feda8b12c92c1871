-- What operators list: small columns of threads, runs and waits. No sealed value and no checkpoint is read.
--
-- A list is read in its order until it is full. States that few have are looked for where they are few: what is said
-- twice about a state below is for the planner, which knows how many there are. The time stands apart, for it is
-- volatile, and what holds it is worked out whole; open waits are looked for by a limit, which is asked for each row. A
-- state that is compared inside coalesce is taken for one that many have.

-- name: threads
with moment as materialized (select standfast.now() as now)
select * from (
    select t.id, t.uuid::text, t.tenant, t.graph, t.version, t.fingerprint, t.run_id::text, t.crashes, t.created_at, t.updated_at,
           r.reason,
           case when t.lease_expires_at > moment.now then t.lease_worker end as worker,
           coalesce(t.lease_expires_at <= moment.now, t.due_at <= moment.now, false) as due,
           case when t.lease_expires_at > moment.now then 'running'
                when r.state in ('succeeded', 'failed', 'cancelled', 'needs_attention') then r.state
                when t.due_at <= moment.now or t.lease_holder is not null then 'queued'
                when (select true from waits w where w.thread_id = t.id and w.state = 'open' limit 1) then 'waiting'
                else 'queued' end as status
      from threads t
      left join runs r on r.thread_id = t.id and r.id = t.run_id
     cross join moment
     where t.tenant = %(tenant)s
       and (%(before)s::timestamptz is null or t.updated_at < %(before)s)
       and (%(graph)s::text is null or t.graph = %(graph)s)
       and (%(state)s::text is distinct from 'running' or t.lease_holder is not null)
       and (%(state)s::text is distinct from 'failed' or r.state = 'failed')
       and (%(state)s::text is distinct from 'cancelled' or r.state = 'cancelled')
       and (%(state)s::text is distinct from 'needs_attention' or r.state = 'needs_attention')) as known
 where coalesce(status = %(state)s, true)
 order by updated_at desc, id limit %(limit)s

-- name: runs
with moment as materialized (select standfast.now() as now)
select * from (
    select r.thread_id, r.id::text, r.number, t.graph, r.version, r.reason, r.requested_by, r.model, r.client_key,
           r.accepted_at, r.ended_at,
           case when r.state <> 'open' then r.state
                when t.lease_expires_at > moment.now then 'running'
                when t.due_at <= moment.now or t.lease_holder is not null then 'queued'
                when (select true from waits w where w.thread_id = t.id and w.state = 'open' limit 1) then 'waiting'
                else 'queued' end as status
      from runs r join threads t on t.id = r.thread_id
     cross join moment
     where r.tenant = %(tenant)s
       and (%(thread)s::text is null or r.thread_id = %(thread)s)
       and (%(graph)s::text is null or t.graph = %(graph)s)
       and (%(state)s::text is distinct from 'running' or t.lease_holder is not null)
       and (%(state)s::text is distinct from 'failed' or r.state = 'failed')
       and (%(state)s::text is distinct from 'cancelled' or r.state = 'cancelled')
       and (%(state)s::text is distinct from 'needs_attention' or r.state = 'needs_attention')) as known
 where coalesce(status = %(state)s, true)
 order by accepted_at desc, id limit %(limit)s

-- name: waits
-- Of each kind the longest first: one index serves every kind, and all of them.
select w.thread_id, w.id, w.run_id::text, w.kind, w.node, w.name, w.approval_id, w.opened_at, w.until, w.graph, w.version
  from unnest(array['approval', 'question', 'timer', 'event', 'completion', 'child']) as of (kind)
 cross join lateral (
    select w.*, t.graph, t.version from waits w join threads t on t.id = w.thread_id
     where w.kind = of.kind and w.state = 'open' and t.tenant = %(tenant)s
       and (%(thread)s::text is null or w.thread_id = %(thread)s)
       and (%(graph)s::text is null or t.graph = %(graph)s)
     order by w.opened_at limit %(limit)s) as w
 where %(kind)s::text is null or of.kind = %(kind)s
 order by w.opened_at, w.thread_id, w.position, w.id limit %(limit)s
