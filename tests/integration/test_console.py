"""The console's door: who may see and do what, and what other sites cannot do.

What there is to try is taken from the console's own table of pages and actions, so that one that is
added without a request to try it with fails here. *The weak* may do everything with what is called
``other…`` and nothing with ``mine``; *the stranger* has a good token, and no rule names it.
"""

import http.client
import json
import random
import re
import urllib.parse

import pytest

import strandline
from strandline.clock import ManualClock
from strandline.servers.http.console.app import ROUTES
from strandline.servers.http.console.sessions import SESSION_MS, SESSIONS_MAX, SessionStore
from strandline.testing import Server
from strandline.types import PartitionName

ADMIN = "an-administrators-token-made-for-this-test"
MINE = "mine"
FORM_TYPE = "application/x-www-form-urlencoded"


class Browser:
    """A user without scripts: keeps cookies, reads the CSRF token of a form, follows nothing."""

    def __init__(self, url):
        self._address = urllib.parse.urlsplit(url).netloc
        self.cookies = {}
        self.csrf_token = ""

    def ask(self, method, path, *, body=None, headers=()):
        """Return status, headers and text of an answer."""
        connection = http.client.HTTPConnection(self._address, timeout=60)
        sent = {"Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items()), **dict(headers)}
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")  # a download is bytes
        finally:
            connection.close()
        for cookie in response.headers.get_all("set-cookie") or ():
            name, value = cookie.split(";")[0].split("=", 1)
            self.cookies[name] = value
        found = re.search(r'name="csrf_token" value="(\w+)"', text)
        self.csrf_token = found[1] if found else self.csrf_token
        return response.status, response.headers, text

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, fields=None, *, csrf_token=None, headers=()):
        """Send a form, with the CSRF token of the last page unless another is given."""
        body = urllib.parse.urlencode(
            {"csrf_token": self.csrf_token if csrf_token is None else csrf_token, **(fields or {})}
        )
        return self.ask(
            "POST", path, body=body, headers={"Content-Type": FORM_TYPE, **dict(headers)}
        )

    def log_in(self, token, to="/streams"):
        self.get(f"/login?next={to}")
        return self.post("/login", {"token": token, "next": to})


@pytest.fixture(scope="module")
def server():
    with Server(http_port=0, auth={"enabled": True, "admin_token": ADMIN}) as url:
        yield url


@pytest.fixture(scope="module")
def tokens(server):
    """The weak one's and the stranger's."""
    with strandline.connect(server, token=ADMIN) as admin:
        for name in (MINE, "other"):
            admin.create_stream(name)
            admin.append(name, b"a record of " + name.encode())
            admin.groups.commit(name, {PartitionName(name, 0): 0})
        for operation in ("read", "publish", "admin"):
            admin.access.grant("weak", operation, "stream", "other*")
        for operation in ("group", "admin"):
            admin.access.grant("weak", operation, "group", "other*")
        for operation in ("read", "publish"):
            admin.access.grant("weak", operation, "subject", "other", "other.>")
        yield {name: admin.access.create_token(name) for name in ("weak", "stranger")}


def filled(path):
    """The path of a page about ``mine``."""
    return f"/group?name={MINE}" if path == "/group" else path.replace("{name}", MINE)


GET_ROUTES = [route.path for route in ROUTES if route.method == "GET"]
FORMS = {
    "/create-stream": {"name": "mine-2"},
    "/streams/{name}/delete": {"confirmed_name": MINE},
    "/streams/{name}/publish": {"value": "forged"},
    "/group/reset": {"name": MINE, "stream": MINE, "offsets": "0:1"},
    "/group/delete": {"name": MINE, "confirmed": "yes"},
    "/trace": {"trace": ""},
    "/access/grant": {
        "principal": "weak",
        "operation": "read",
        "kind": "stream",
        "pattern": MINE,
    },
    "/access/revoke": {
        "principal": "weak",
        "operation": "read",
        "kind": "stream",
        "pattern": "other*",
    },
    "/access/create-token": {"token_principal": "weak"},
    "/access/revoke-token": {"id": "0123abcd"},
    "/access/set-quota": {"quota_principal": "weak", "requests_per_s": "5"},
    "/access/remove-quota": {"quota_principal": "weak"},
    "/streams/{name}/delete-records": {"before": "1", "confirmed": "yes"},
}
"""A form for every action, which would affect what is called ``mine``."""
OF_VISITORS_OWN = {"/trace"}
"""Actions on what a user sends, for every user; nothing of the broker's is shown."""
OPEN_TO_ALL = {"/streams", "/create-stream", "/groups", "/pipelines"}
"""Pages for every user, on which each sees only what it may."""


def test_every_action_has_a_form_to_try_it_with():
    """The table is the console's own."""
    assert {route.path for route in ROUTES if route.method == "POST"} == set(FORMS)


@pytest.mark.parametrize("path", GET_ROUTES)
def test_no_page_is_for_those_who_may_not(server, tokens, path):
    """Without a session the login is shown; others see what the rules allow them, or 403."""
    status, headers, text = Browser(server.http_url).get(filled(path))
    assert status == 303
    assert headers["location"] == f"/login?next={urllib.parse.quote(filled(path))}"
    assert MINE not in text
    for token in ("wrong", tokens["weak"][:-1]):
        status, headers, _ = Browser(server.http_url).get(
            filled(path), Authorization=f"Bearer {token}"
        )
        assert (status, headers["www-authenticate"].split()[0]) == (401, "Basic")
    stranger = {"Authorization": f"Bearer {tokens['stranger']}"}
    assert Browser(server.http_url).get(filled(path), **stranger)[0] == 403
    weak = Browser(server.http_url)
    assert weak.log_in(tokens["weak"])[0] == 303
    status, _, text = weak.get(filled(path))
    assert status == (200 if path in OPEN_TO_ALL else 403)
    assert "a record of mine" not in text
    for link in (f"/streams/{MINE}", f"/group?name={MINE}"):
        assert link not in text.partition("<main")[2]
    admin = Browser(server.http_url)
    admin.log_in(ADMIN)
    assert admin.get(filled(path))[0] == 200


@pytest.mark.parametrize("path", sorted(FORMS))
def test_no_action_is_for_those_who_may_not(server, tokens, path):
    """Nothing changes without a session, without the CSRF token, or against the rules."""
    with strandline.connect(server, token=ADMIN) as admin:

        def state():
            infos = {info.name: info for info in admin.list_streams()}
            access = admin.access.rules(), admin.access.tokens(), admin.quotas.list()
            return sorted(infos), infos[MINE].partitions, admin.groups.info(MINE), access

        before = state()
        nobody = Browser(server.http_url)
        assert nobody.post(filled(path), FORMS[path], csrf_token="0" * 64)[0] == 303
        header = {"Authorization": f"Bearer {ADMIN}"}  # sent by a browser on its own, as Basic is
        assert nobody.post(filled(path), FORMS[path], csrf_token="", headers=header)[0] == 303
        for token in (ADMIN, tokens["weak"]):
            forged = Browser(server.http_url)
            forged.log_in(token)
            for csrf_token in ("", "0" * 64, "é"):
                assert forged.post(filled(path), FORMS[path], csrf_token=csrf_token)[0] == 403
        weak = Browser(server.http_url)
        weak.log_in(tokens["weak"])
        weak.get("/create-stream")
        status, _, text = weak.post(filled(path), FORMS[path])
        assert status == (200 if path in OF_VISITORS_OWN else 403)
        assert "weak" in text
        assert state() == before


def test_the_cookie_is_for_this_site_and_no_script_and_holds_no_token(server):
    """HttpOnly and SameSite=Strict; the id changes with the login, and ends with the logout."""
    user = Browser(server.http_url)
    _, headers, _ = user.get("/login")
    assert "HttpOnly" in headers["set-cookie"]
    assert "SameSite=strict" in headers["set-cookie"]
    planted = dict(user.cookies)
    user.post("/login", {"token": ADMIN, "next": "/"})
    assert user.cookies != planted
    assert ADMIN not in str(user.cookies)
    status, headers, text = user.get("/")
    assert status == 200
    assert ADMIN not in text
    session = dict(user.cookies)
    assert user.post("/logout")[0] == 303
    user.cookies = session
    assert user.get("/")[0] == 303


def test_a_wrong_token_begins_no_session(server, tokens):
    """The login says why, and what was entered is not in the page."""
    for token, status in (("wrong-token", 401), (tokens["stranger"], 403)):
        user = Browser(server.http_url)
        answer = user.log_in(token)
        assert answer[0] == status
        assert token not in answer[2]
        assert user.get("/")[0] == 303


@pytest.mark.parametrize("to", ["//evil.example", "https://evil.example", "/\\evil.example", ""])
def test_the_login_leads_to_no_other_site(server, to):
    """Only a path of this site is followed after a login."""
    user = Browser(server.http_url)
    user.get("/login")
    _, headers, _ = user.post("/login", {"token": ADMIN, "next": to})
    assert headers["location"] == "/"


def test_a_revoked_token_ends_its_session(server):
    """The next page asks for a login."""
    with strandline.connect(server, token=ADMIN) as admin:
        admin.access.grant("leaver", "read", "cluster", "*")
        token = admin.access.create_token("leaver")
        user = Browser(server.http_url)
        user.log_in(token)
        assert user.get("/")[0] == 200
        admin.access.revoke_token(token.split("_")[1])
        assert user.get("/")[0] == 303
        assert user.get("/")[0] == 303


def test_actions_take_forms_only(server):
    """A body of another kind, which other sites could send, is not even read as a form."""
    user = Browser(server.http_url)
    user.log_in(ADMIN)
    user.get("/create-stream")
    body = f"csrf_token={user.csrf_token}&name=x"
    for media_type in ("text/plain", "application/json", ""):
        headers = {"Content-Type": media_type}
        assert user.ask("POST", "/create-stream", body=body, headers=headers)[0] == 415


def test_an_open_console_answers_only_to_names_of_its_machine():
    """Without access control, a site cannot reach it by letting its own name mean this machine."""
    with Server(http_port=0) as url:
        user = Browser(url.http_url)
        for host, status in (
            ("evil.example", 403),
            ("evil.example:80", 403),
            ("127.0.0.1.evil.example", 403),
            ("localhost:1234", 200),
            ("console.localhost", 200),
            ("[::1]:9294", 200),
            ("127.0.0.1", 200),
        ):
            assert (host, user.get("/streams", Host=host)[0]) == (host, status)
        user.get("/create-stream")
        headers = {"Host": "evil.example"}
        assert user.post("/create-stream", {"name": "x"}, headers=headers)[0] == 403
        assert user.post("/create-stream", {"name": "x"}, csrf_token="")[0] == 403
        assert user.post("/create-stream", {"name": "x"})[0] == 303


ODD_VALUES = (
    *("", "0", "-1", "9" * 18, "9" * 40, "1e9", "nan", "1_000", "٣", "x" * 5000, "é" * 300),
    *("\0", "\u202e", "%", "*", ">", "a.>", "..", "../../etc/passwd", "<script>", "{}", "[1]"),
    *("0:1", "1,2", "a=b", "-5m", "5m", "2026-13-40", "newest", "json", "parquet", "__groups"),
)
REQUESTS = 600


def test_odd_values_are_answered():
    """By a page or a refusal, whatever is sent to a page or an action: never by a fault of ours."""
    draw = random.Random(20261127)
    with Server(http_port=0) as url, strandline.connect(url) as admin:
        admin.create_stream(MINE, subject="mine.>", partitions=2)
        admin.append(MINE, b"\0\xff", subject="mine.a", key=b"\xff", headers={"h": b"\xff"})
        user = Browser(url.http_url)
        fields = set().union(*FORMS.values())
        for path in GET_ROUTES:
            fields.update(re.findall(r'name="(\w+)"', user.get(filled(path))[2]))
        fields = sorted(fields - {"csrf_token", "viewport"})
        for _ in range(REQUESTS):
            route = draw.choice(ROUTES)
            sent = {draw.choice(fields): draw.choice(ODD_VALUES) for _ in range(draw.randrange(6))}
            path = route.path.replace("{name}", draw.choice((MINE, "absent", "%00", "%3E")))
            if route.method == "GET":
                status, _, text = user.get(f"{path}?{urllib.parse.urlencode(sent)}")
            else:
                user.get("/create-stream")
                status, _, text = user.post(path, sent)
            assert status < 500, (route, sent, text)
            assert "<script>" not in text.replace("&lt;script&gt;", ""), (route, sent)
        assert admin.append(MINE, b"it goes on", subject="mine.a").offset >= 0


def test_records_are_shown_by_the_schema_of_their_stream():
    """Hostile data is text, and does not hide the records beside it."""
    order = {"type": "record", "name": "O", "fields": [{"name": "name", "type": "string"}]}
    with Server(http_port=0) as url, strandline.connect(url) as admin:
        admin.create_stream(MINE)
        admin.schemas.set(MINE, json.dumps(order))
        for name in (b"ada", b"<script>alert(1)</script>"):
            admin.append(MINE, bytes([2 * len(name)]) + name)
        for value in (b"\xff\xfe", b"\x7f", b"<script>", None):
            admin.append(MINE, value)
        user = Browser(url.http_url)
        for path in ("records?", "tail?positions=0:0&", "records?decode=hex&"):
            status, _, text = user.get(f"/streams/{MINE}/{path}")
            assert status == 200
            text = json.loads(text)["rows"] if path.startswith("tail") else text
            assert "<script>" not in text.replace("&lt;script&gt;", "")
            by_schema = "hex" not in path
            assert (text.count('tag">Avro<'), text.count("does not fit the schema")) == (
                (2, 3) if by_schema else (0, 0)
            )
            assert ("alert(1)" in text) is by_schema
            assert "ada" in text
        status, _, text = user.get(f"/streams/{MINE}")
        assert (status, "Version 1 of avro values" in text) == (200, True)


def test_sessions_end_and_are_limited():
    """After eight hours; and the one used longest ago when there are too many."""
    clock = ManualClock()
    store = SessionStore(clock)
    first = store.open("token", "someone")
    clock.advance_ms(SESSION_MS - 1)
    assert store.find(first).principal == "someone"
    assert "token" not in repr(store.find(first))
    clock.advance_ms(1)
    assert store.find(first) is None
    ids = [store.open("token", str(number)) for number in range(SESSIONS_MAX)]
    assert store.find(ids[0]) is not None
    store.open("token", "one more")
    assert store.find(ids[0]) is not None
    assert store.find(ids[1]) is None


def test_the_clients_page_names_the_principals(server, tokens):
    """Of each connection, for those who may read the cluster; others do not see it."""
    with strandline.connect(server, token=tokens["weak"]) as weak:
        weak.list_streams()
        admin = Browser(server.http_url)
        admin.log_in(ADMIN)
        status, _, text = admin.get("/clients")
        assert status == 200
        assert "weak" in text
        assert "__admin" in text
