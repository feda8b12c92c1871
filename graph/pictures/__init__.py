"""What a notebook shows: pictures of graphs and threads, cards of results and approvals, tables of what was done.

Invariant: everything is made here, as one piece of HTML: escaped, without a script and without a request to anybody, in
the light or the dark of the page that it stands in.
"""
