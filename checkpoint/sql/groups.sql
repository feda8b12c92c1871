-- name: set
select set_member_1(%(tenant)s, %(group)s, %(principal)s, %(member)s, %(who)s, %(verified_by)s) as changed

-- name: of
select name from group_members where tenant = %(tenant)s and principal = %(principal)s order by name

-- name: members
select principal from group_members where tenant = %(tenant)s and name = %(group)s order by principal

-- name: list
select name, principal, added_by, added_at from group_members
 where tenant = %(tenant)s and (%(group)s::text is null or name = %(group)s) order by name, principal
