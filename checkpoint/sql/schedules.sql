-- name: add
insert into schedules (tenant, name, graph, version, fingerprint, cron, zone, catch_up, overlap, requested_by, vouched,
                       model, collection_id, request, settings, deadline, budget, priority, next_at)
values (%(tenant)s, %(name)s, %(graph)s, %(version)s, %(fingerprint)s, %(cron)s, %(zone)s, %(catch_up)s, %(overlap)s,
        %(requested_by)s, %(vouched)s, %(model)s, %(collection)s, %(request)s, %(settings)s,
        %(deadline)s, %(budget)s, %(priority)s, %(next_at)s)
on conflict do nothing returning name

-- name: due
select *, standfast.now() as now from schedules
 where not paused and next_at <= (select standfast.now()) order by next_at limit %(most)s

-- name: list
select *, standfast.now() as now from schedules where tenant = %(tenant)s order by name

-- name: get
select *, standfast.now() as now from schedules where tenant = %(tenant)s and name = %(name)s

-- name: pause
update schedules set paused = %(paused)s, next_at = coalesce(%(next_at)s, next_at)
 where tenant = %(tenant)s and name = %(name)s returning name

-- name: remove
delete from schedules where tenant = %(tenant)s and name = %(name)s returning name

-- name: fire
select fire_1(%(tenant)s, %(name)s, %(found_at)s, %(due)s, %(next_at)s, %(key)s, %(thread)s, %(run)s, %(input)s,
              %(settings)s, %(budget)s) as verdict
