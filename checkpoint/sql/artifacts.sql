-- name: begin
insert into artifacts (sha256, size, place, keep_until)
values (%(sha256)s, %(size)s, %(place)s, standfast.now() + make_interval(secs => %(seconds)s))
on conflict (sha256) do update set keep_until = greatest(artifacts.keep_until, excluded.keep_until)
returning stored, place

-- name: put_chunk
insert into artifact_chunks (sha256, index, bytes) values (%b, %b, %b)

-- name: stored
update artifacts set stored = true where sha256 = %(sha256)s

-- name: refer
select refer_1(%(thread)s, %(contents)s::text[], %(labels)s::bytea[], %(as_parts)s)

-- name: place
select place from artifacts where sha256 = %(sha256)s and stored

-- name: chunk
select bytes from artifact_chunks where sha256 = %(sha256)s and index = %(index)s

-- name: list
select r.thread_id, r.sha256, r.label, r.created_at, a.size, a.place
  from artifact_references r join artifacts a on a.sha256 = r.sha256
 where (%(thread)s::text is null or r.thread_id = %(thread)s)
   and (%(prefix)s::text is null or starts_with(r.sha256, %(prefix)s))
 order by r.created_at desc, r.thread_id, r.sha256 limit %(limit)s

-- name: sweep
select sha256, place from sweep_artifacts_1(%(most)s)

-- name: delete
delete from artifacts where sha256 = any(%(contents)s)
