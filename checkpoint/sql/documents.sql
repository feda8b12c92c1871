-- name: put_document
insert into documents (sha256, media_type, title, size)
values (%(sha256)s, %(media_type)s, %(title)s, %(size)s) on conflict (sha256) do nothing

-- name: put_passage
insert into passages (sha256, index, text) values (%(sha256)s, %(index)s, %(text)s)
on conflict (sha256, index) do nothing

-- name: known
-- Locked until the commit that has them: nobody sweeps them meanwhile.
select sha256 from documents where sha256 = any(%(hashes)s) order by sha256 for key share

-- name: put_collection
insert into collections (id) values (%(id)s) on conflict (id) do update set put_at = standfast.now()

-- name: put_member
insert into collection_documents (collection_id, name, sha256) values (%(id)s, %(name)s, %(sha256)s)
on conflict (collection_id, name) do nothing

-- name: members
select c.name, c.sha256, d.title, d.media_type, d.size,
       (select count(*) from passages p where p.sha256 = c.sha256) as passages
  from collection_documents c join documents d using (sha256)
 where c.collection_id = %(collection)s order by c.name

-- name: search
-- A passage ranks by how many of the query's words it has and how close they stand: the query is turned
-- from "all words" into "any word", because a question seldom has all of its words in one passage.
with query as (
    select nullif(replace(plainto_tsquery('english', %(query)s)::text, ' & ', ' | '), '')::tsquery as words)
select c.name as document, c.sha256, p.index as passage, d.title, p.text,
       ts_rank_cd(p.search, query.words, 1) as rank
  from collection_documents c
  join documents d using (sha256)
  join passages p using (sha256)
 cross join query
 where c.collection_id = %(collection)s and p.search @@ query.words
 order by rank desc, c.name, p.index
 limit %(limit)s

-- name: passages
select c.name as document, c.sha256, p.index as passage, d.title, p.text
  from collection_documents c
  join documents d using (sha256)
  join passages p using (sha256)
 where c.collection_id = %(collection)s and c.name = %(document)s
   and p.index between %(first)s and %(last)s
 order by p.index
