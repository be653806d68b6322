"""Consumer groups and committed offsets on a broker: their coordinator.

``Broker.groups`` is a ``GroupCoordinatorService``; every method is a coroutine on the broker's
loop, and any front end may use it:

- ``join``, ``heartbeat``, ``leave``: be a member of a group (``strandline.core.groups.events``);
- ``commit(group, positions)``: note positions, stream → partition → offset of the next record to
  consume; done when every in-sync replica has them. Without a member it is for groups that have
  none: any consumer that keeps positions without being a member, such as a cursor of Liftbridge's,
  is such a group;
- ``committed_offsets(group)``: what was committed last, empty for a group that nobody knows;
- ``groups()``, ``describe(group)``, ``delete(group)``.

All raise ``NotLeaderError`` where another broker holds the office, which is the leader of partition
0 of the stream ``__groups``, and ``StillLoadingError`` shortly after it came here: retry.
"""
