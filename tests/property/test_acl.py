"""Access rules against a simple model, for any rules and requests."""

from hypothesis import given
from hypothesis import strategies as st

from strandline.record.subjects import is_reserved, subject_covers, subject_matches
from strandline.security.acl import OPERATIONS, Acls, Resource, Rule, check_rule
from strandline.security.principal import ANONYMOUS, Principal

TOKENS = st.sampled_from(["a", "b", "$x", "_INBOX"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
PATTERNS = st.builds(
    lambda tokens, end: ".".join([*tokens, *end]),
    st.lists(TOKENS | st.just("*"), min_size=1, max_size=4),
    st.sampled_from([(), (">",)]),
) | st.just(">")
NAMES = st.text("ab", min_size=1, max_size=3)
PEOPLE = st.sampled_from(["ann", "bob"])


def rules() -> st.SearchStrategy[Rule]:
    """Any rule that is one."""
    pattern = {
        "subject": PATTERNS,
        "cluster": st.just("*"),
        "stream": NAMES | NAMES.map(lambda name: name + "*") | st.just("*"),
        "group": NAMES | NAMES.map(lambda name: name + "*") | st.just("*"),
    }
    return st.sampled_from([(k, o) for k, all_of in OPERATIONS.items() for o in all_of]).flatmap(
        lambda pair: st.builds(Rule, PEOPLE, st.just(pair[1]), st.just(pair[0]), pattern[pair[0]])
    )


def says(rule: Rule, name: str) -> bool:
    """Return whether a pattern matches a name, by definition."""
    if rule.kind == "subject":
        return subject_matches(rule.pattern, name)
    return name.startswith(rule.pattern[:-1]) if rule.pattern[-1] == "*" else name == rule.pattern


@given(PATTERNS, PATTERNS, SUBJECTS)
def test_a_covered_pattern_matches_nothing_more(pattern, asked, subject):
    """A covering pattern matches everything that the covered one matches."""
    if subject_covers(pattern, asked) and subject_matches(asked, subject):
        assert subject_matches(pattern, subject)


@given(PATTERNS, PATTERNS)
def test_what_is_not_covered_has_a_subject_outside(pattern, asked):
    """A rejection is right: one of the short subjects that are asked for is not in the pattern."""
    if subject_covers(pattern, asked):
        return
    tail = ["q", "q.q", "q.q.q", "q.q.q.q", "q.q.q.q.q"]
    fills = [asked.replace("*", "q").removesuffix(">") + t for t in tail]
    candidates = fills if asked.endswith(">") else [asked.replace("*", "q")]
    assert any(subject_matches(asked, s) and not subject_matches(pattern, s) for s in candidates)


@given(PATTERNS)
def test_every_pattern_covers_itself(pattern):
    """A caller with permission for a pattern may request all of it."""
    assert subject_covers(pattern, pattern)


@given(st.lists(rules(), max_size=6), PEOPLE, st.data())
def test_a_decision_is_what_the_rules_say_one_by_one(given_rules, person, data):
    """The indexed table decides as reading every rule would, for plain names and subjects."""
    for rule in given_rules:
        check_rule(rule)
    kind = data.draw(st.sampled_from(list(OPERATIONS)))
    operation = data.draw(st.sampled_from(["read", "publish", "group", "admin"]))
    name = data.draw({"subject": SUBJECTS, "cluster": st.just("")}.get(kind, NAMES))
    mine = [rule for rule in given_rules if rule.principal == person]
    is_admin = any(rule.kind == "cluster" and rule.operation == "admin" for rule in mine)
    expected = is_admin or any(
        (rule.operation, rule.kind) == (operation, kind) and (kind == "cluster" or says(rule, name))
        for rule in mine
    )
    acls = Acls(given_rules)
    assert acls.allows(Principal(person), operation, Resource(kind, name)) is expected
    assert not acls.allows(ANONYMOUS, operation, Resource(kind, name))


@given(st.lists(rules(), max_size=6), rules(), PEOPLE, SUBJECTS)
def test_a_rule_more_never_takes_anything_away(given_rules, more, person, subject):
    """Rules only allow, so their order and number cannot forbid."""
    resource = Resource("subject", subject)
    if Acls(given_rules).allows(Principal(person), "publish", resource):
        assert Acls([more, *given_rules]).allows(Principal(person), "publish", resource)


@given(SUBJECTS)
def test_the_open_wildcard_leaves_out_what_is_natss_own(subject):
    """A rule for ``>`` reaches no inbox and nothing of the system."""
    acls = Acls([Rule("ann", "publish", "subject", ">")])
    allowed = acls.allows(Principal("ann"), "publish", Resource("subject", subject))
    assert allowed is not is_reserved(subject)
