"""The review page as an ASGI application."""

from __future__ import annotations

import datetime as dt
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from ragshield_core.model.errors import (
    QuarantineError,
    RAGShieldError,
    RuleError,
)
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import Quarantine
from ragshield_core.store.guarded import Guarded
from ragshield_core.tools.case_report import sentence
from ragshield_core.tools.review.access import (
    LONGEST_NAME,
    Access,
    Authenticate,
    Reviewer,
    Role,
    add_headers,
    is_name,
)
from ragshield_core.tools.review.cases import LIMIT, Around, Case, Cases
from ragshield_core.tools.review.cases import Page as Found
from ragshield_core.tools.review.choices import Action, CaseOrder
from ragshield_core.tools.review.desk import DECIDED, ConflictError, Decided, Desk
from ragshield_core.tools.review.feedback import reviewed
from ragshield_core.tools.review.quarantine_report import heading
from ragshield_core.tools.review.views import (
    PAGE,
    RULE_DAYS,
    SHOWN,
    case_view,
    health_view,
    key_of,
    open_questions,
    pieces,
    rulable,
    source_view,
    visible,
)
from ragshield_core.tools.rules import CAUTION, NEVER, Rules

HOURS = 8.0
SECRET_BYTES = 32
# Decisions that can be taken back within a session.
REMEMBERED = 10
# Seconds of a request that decides on a whole case; remaining entries wait for the next request.
STEP = 10.0
# Choices for the duration of a rule, in days.
DAYS = ("30", "90", "365", NEVER)
# Characters of a search, and of a reason.
LONGEST_SEARCH, LONGEST_NOTE = 200, 2_000
# Fields of the form for a rule that keep their values after an error.
GIVEN = ("source", "reason", "detectors")

Page = Callable[["_Visit"], Response]


def review_app(
    store: Guarded | Quarantine,
    *,
    authenticate: Authenticate | None = None,
    tokens: Mapping[str, str] | None = None,
    two_persons: bool = False,
    hours: float = HOURS,
    secret: str | None = None,
    https: bool = False,
    hosts: list[str] | None = None,
) -> Starlette:
    """Return the page on which people judge held entries, to be mounted or served.

    Parameters
    ----------
    store
        A guarded store, which takes released entries at once; or a quarantine, whose released
        entries are admitted at the next ingestion.
    authenticate
        Function from a request to the :class:`Reviewer` who sends it, ``None`` for a stranger. It
        is called in a thread for every request, and your application's sessions decide.
    tokens
        Without ``authenticate``: each reviewer's login token, by the reviewer's name. The log
        records that name.
    two_persons
        Whether a release needs a second person. Off by default.
    hours
        Hours until a reviewer has to log in again; 8 by default, a working day.
    secret
        Key that signs cookies, the same in all processes that serve the page. ``None``, the
        default, draws one, and sessions end with the process.
    https
        Whether the page is served over TLS; browsers then send its cookies over TLS only.
    hosts
        Allowed host names, against DNS rebinding. ``None``, the default, allows any: an application
        around the page then has to check them.

    Raises
    ------
    ValueError
        If neither ``authenticate`` nor a token is given, which would let everybody in; if
        ``two_persons`` has fewer than two tokens, or two reviewers share one.

    Examples
    --------
    >>> app = review_app(Quarantine("sqlite://"), tokens={"anna": "32 random characters"})
    """
    if authenticate is None:
        _check_tokens(tokens or {}, two_persons=two_persons)
    quarantine = store if isinstance(store, Quarantine) else store.quarantine
    live = None if isinstance(store, Quarantine) else store
    desk = Desk(quarantine, live, two_persons=two_persons)
    access = Access(authenticate, tokens or {}, hours * 3600.0)
    pages = _Pages(desk, access)

    def get(path: str, page: Page) -> Route:
        return Route(path, partial(_serve, pages, page, Role.VIEW), name=page.__name__)

    def post(path: str, page: Page, role: Role = Role.DECIDE) -> Route:
        serve = partial(_serve, pages, page, role)
        return Route(path, serve, name=page.__name__, methods=["POST"])

    static = files("ragshield_core.tools.review").joinpath("static")
    middleware = [
        Middleware(BaseHTTPMiddleware, dispatch=add_headers),
        Middleware(
            SessionMiddleware,
            secret_key=secret or secrets.token_hex(SECRET_BYTES),
            session_cookie="ragshield_review",
            max_age=max(1, int(hours * 3600.0)),
            same_site="strict",
            https_only=https,
        ),
    ]
    if hosts is not None:
        middleware.insert(1, Middleware(TrustedHostMiddleware, allowed_hosts=hosts))
    app = Starlette(
        routes=[
            get("/", pages.queue),
            post("/filter", pages.narrow, Role.VIEW),
            post("/cases", pages.decide_cases),
            get("/cases/{number:number}", pages.case),
            post("/cases/{number:number}", pages.decide),
            get("/entries/{number:number}/{start:number}", pages.text),
            post("/undo", pages.undo),
            get("/rules", pages.rules),
            post("/rules", pages.make_rule),
            post("/rules/{number:number}/revoke", pages.revoke_rule),
            get("/feedback", pages.feedback),
            post("/sources", pages.decide_source),
            get("/health", pages.health),
            post("/health/verify", pages.verify, Role.VIEW),
            Route("/login", partial(_login, pages), name="login", methods=["GET", "POST"]),
            Route("/logout", partial(_logout, pages), name="logout", methods=["POST"]),
            Mount("/static", StaticFiles(directory=str(static)), name="static"),
        ],
        middleware=middleware,
        exception_handlers={HTTPException: pages.refused, RAGShieldError: pages.failed},
    )
    app.state.outside = authenticate is not None
    return app


def _check_tokens(tokens: Mapping[str, str], *, two_persons: bool) -> None:
    """Refuse tokens that would not identify the reviewer.

    Raises
    ------
    ValueError
        If there is none, too few for two persons, a shared or empty one, or a bad name.
    """
    if not tokens:
        msg = (
            "the review page would be open to everybody: pass authenticate=, a function from a "
            "request to a Reviewer or None, or tokens={name: token, ...}, drawn at random."
        )
        raise ValueError(msg)
    if two_persons and len(tokens) < 2:  # noqa: PLR2004
        msg = (
            "two_persons is True, and 1 reviewer has a token, expected two or more: pass "
            "tokens={name: token, ...}, drawn at random."
        )
        raise ValueError(msg)
    odd = not all(map(is_name, tokens)) or not all(tokens.values())
    if odd or len(set(tokens.values())) < len(tokens):
        msg = (
            f"tokens are of {[printable(name, LONGEST_NAME) for name in tokens]}, expected names "
            f"of 1 to {LONGEST_NAME} characters, and for each a token that nobody else has."
        )
        raise ValueError(msg)


class _Number(IntegerConvertor):
    """A number in an address, small enough for every database."""

    regex = "[0-9]{1,18}"


register_url_convertor("number", _Number())


class _Visit:
    """A request of a logged-in reviewer."""

    def __init__(self, request: Request, reviewer: Reviewer, form: Any) -> None:
        self.request, self.reviewer, self.form = request, reviewer, form
        self.session: dict[str, Any] = request.session

    @property
    def page(self) -> int:
        """The page number in the address, from 1."""
        return max([1, *_numbers([self.request.query_params.get("page", "")], 9)])

    def numbers(self, name: str) -> list[int]:
        """Return the numbers in the form's fields of a name."""
        return _numbers(self.form.getlist(name)) if self.form else []

    def given(self, name: str) -> str:
        """Return the value of a field of the form, empty if there is none."""
        return str(self.form.get(name, ""))

    @property
    def note(self) -> str | None:
        """The reason in the form, if any."""
        return self.given("note").strip()[:LONGEST_NOTE] or None

    def to(self, name: str, *, told: str | None = None, **path: Any) -> RedirectResponse:
        """Return a redirect to another page, which shows the message ``told``."""
        if told is not None:
            self.session["told"] = told
        return RedirectResponse(self.request.url_for(name, **path).path, status_code=303)


async def _serve(pages: _Pages, page: Page, role: Role, request: Request) -> Response:
    reviewer = await run_in_threadpool(pages.access.reviewer, request)
    if reviewer is None:
        if pages.access.authenticate is not None:
            raise HTTPException(403, "You may not look at this page.")
        if request.method == "POST":
            msg = "Your session has ended, and nothing was done; log in and decide again."
            raise HTTPException(401, msg)
        return RedirectResponse(request.url_for("login").path, status_code=303)
    pages.access.limit(request, reviewer)
    form: Any = {}
    if request.method == "POST":
        form = await request.form(max_files=0, max_fields=LIMIT + 20)
        pages.access.check_form(request, form)
    if role is Role.DECIDE and reviewer.role is not Role.DECIDE:
        raise HTTPException(403, "You may look, and not decide; nothing was done.")
    return await run_in_threadpool(page, _Visit(request, reviewer, form))


async def _login(pages: _Pages, request: Request) -> Response:
    if pages.access.authenticate is not None:
        raise HTTPException(404, "There is no login here; your application has its own.")
    why, status = "", 200
    if request.method == "POST":
        form = await request.form(max_files=0, max_fields=5)
        if pages.access.log_in(request, form):
            return RedirectResponse(request.url_for("queue").path, status_code=303)
        why, status = "This is not a token that was shown when the page was started.", 401
    return pages.render(request, "login.html", status, why=why)


async def _logout(pages: _Pages, request: Request) -> Response:
    pages.access.check_form(request, await request.form(max_files=0, max_fields=5))
    pages.access.log_out(request)
    return RedirectResponse(request.url_for("queue").path, status_code=303)


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("ragshield_core.tools.review"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"printable": printable, "sentence": sentence, "visible": visible}
    return made


class _Pages:
    """Handlers of all pages and forms."""

    def __init__(self, desk: Desk, access: Access) -> None:
        self.desk, self.access = desk, access

    def show(self, visit: _Visit, name: str, status: int = 200, **values: Any) -> Response:
        """Return a page for a logged-in reviewer."""
        return self.render(visit.request, name, status, reviewer=visit.reviewer, **values)

    def render(self, request: Request, name: str, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        session = request.session
        shared = {
            "request": request,
            "url": lambda name, **path: request.url_for(name, **path).path,
            "csrf": session.get("csrf", ""),
            "told": session.pop("told", None),
            "undoable": session.get("undo", []),
            "two_persons": self.desk.two_persons,
            "live": self.desk.store is not None,
            "quarantine": self.desk.quarantine,
            "reviewer": None,
        }
        page = _templates().get_template(name).render(shared | values)
        return HTMLResponse(page, status)

    # Pages

    def queue(self, visit: _Visit) -> Response:
        """Show the cases that wait."""
        quarantine = self.desk.quarantine
        cases, there = Cases(quarantine), quarantine.exists()
        narrowed = _narrowed(visit.session)
        order = _order(visit.request.query_params.get("order", ""))
        found = Found((), 0, 0)
        if there:
            found = cases.page(**narrowed, order=order, offset=(visit.page - 1) * LIMIT)
        visit.session["order"] = order
        firsts = cases.firsts(found.cases) if there else {}
        return self.show(
            visit,
            "queue.html",
            asked=source_view(quarantine, self.desk.store),
            cases=[(case, heading(case, firsts.get(case.number))) for case in found.cases],
            last=cases.newest() if there else 0,
            count=found.n_cases,
            n_waiting=cases.n_waiting() if there else 0,
            page=found.offset // LIMIT + 1,
            n_pages=max(1, -(-found.n_cases // LIMIT)),
            order=order,
            orders=list(CaseOrder),
            detectors=cases.detectors() if there else (),
            narrowed=narrowed,
        )

    def narrow(self, visit: _Visit) -> Response:
        """Set filters; the session keeps them, since addresses end up in logs."""
        waiting = visit.given("waiting")
        chosen = {
            "waiting": waiting if waiting in ("no", "all") else "",
            "detector": visit.given("detector")[:LONGEST_SEARCH],
            "source": visit.given("source")[:LONGEST_SEARCH],
            "search": visit.given("search").strip()[:LONGEST_SEARCH],
        }
        visit.session["filter"] = {name: value for name, value in chosen.items() if value}
        return visit.to("queue")

    def case(self, visit: _Visit) -> Response:
        """Show a case."""
        number = visit.request.path_params["number"]
        case = self._case(number)
        if case.number != number:  # a part of another one by now
            return visit.to("case", number=case.number)
        return self._case_page(visit, case)

    def decide(self, visit: _Visit) -> Response:
        """Carry out a decision on some entries of a case, or on all of them."""
        case = self._case(visit.request.path_params["number"])
        action, whole, numbers = _asked(visit)
        note = visit.note
        if action is Action.RELEASE and visit.given("rule") and note is None:
            why = "Nothing was done: a rule needs a reason. Write why, and release again."
            return self._case_page(visit, case, 400, told=why)
        if not (whole or numbers):
            return self._case_page(visit, case, 400, told="Choose at least one entry.")
        following = self._around(visit, case).following
        by = visit.reviewer.name
        steps: Iterable[Decided] = (
            self.desk.decide(action, some, by=by, note=note) for some in [numbers]
        )
        if whole:
            last, n_seen = ([*visit.numbers(name), None][0] for name in ("last", "members"))
            steps = self.desk.decide_case(
                action, case.number, by=by, note=note, last=last, n_seen=n_seen
            )
        try:
            done, why = _within_time(steps)
        except ConflictError as conflict:
            return self._case_page(visit, case, 409, conflict=conflict)
        except QuarantineError as error:
            return self._case_page(visit, case, 409, told=printable(str(error), 500))
        told = self._tell(visit, action, done) + why
        if action is Action.RELEASE and not whole and done[0].n_done:
            told += self._rule_too(visit, numbers)
        n_left = self._case(case.number).n_waiting
        if n_left and whole and action in DECIDED:
            told += f" {_entries(n_left)} of the case still {_wait(n_left)}."
        through = action is Action.KEEP or any(one.n_proposed for one in done)
        if action is Action.REOPEN or (n_left and not through):
            return visit.to("case", told=told, number=case.number)
        return self._next(visit, case.number, following, told)

    def _next(self, visit: _Visit, number: int, following: int | None, told: str) -> Response:
        """Redirect to the next case, from the last case to the first, or else to the queue."""
        if following is None:
            following = self._around(visit, None).following
        if following in (None, number):
            return visit.to("queue", told=told)
        return visit.to("case", told=told, number=following)

    def _rule_too(self, visit: _Visit, numbers: Sequence[int]) -> str:
        """Make a rule from a release if the reviewer ticked the box; return a message about it."""
        if not visit.given("rule"):
            return ""
        source = rulable(list(Cases(self.desk.quarantine).entries(numbers).values()))
        if source is None:
            return " No rule was made: none excuses all of these entries."
        try:
            rule = Rules(self.desk.quarantine).add(
                source,
                reason=visit.note or "",
                by=visit.reviewer.name,
                expires_at=dt.datetime.now(dt.UTC) + dt.timedelta(days=RULE_DAYS),
            )
        except RuleError as error:
            return f" No rule was made: {printable(str(error), 300)}"
        return f" Rule {rule.number} is in force for {RULE_DAYS} days."

    def decide_cases(self, visit: _Visit) -> Response:
        """Decide on several cases, as the queue showed them."""
        named, seen = visit.given("action"), visit.numbers("last")
        if named not in DONE or named == Action.REOPEN or not seen:
            raise HTTPException(400, NAMES_NONE)
        numbers = visit.numbers("case")
        if not numbers:
            return visit.to("queue", told="Choose at least one case.")
        action, left = Action(named), list[int]()
        by, note = visit.reviewer.name, visit.note

        def steps() -> Iterator[Decided]:
            for number in numbers:
                outcome = self.desk.decide_seen(action, number, seen[0], by=by, note=note)
                if outcome is None:
                    left.append(number)
                else:
                    yield outcome

        done, told = _within_time(steps(), math.inf)
        told = (self._tell(visit, action, done) if done else "Nothing was done.") + told
        if left:
            cases = ", ".join(f"case {number}" for number in left)
            told += f" Open these, which are large or have changed: {cases}."
        return visit.to("queue", told=told)

    def _around(self, visit: _Visit, case: Case | None) -> Around:
        """Return the neighbours of a case in the queue, in the reviewer's filters and order.

        The search is left out, since it would read all texts again for each case.
        """
        narrowed = _narrowed(visit.session)
        del narrowed["search"]
        order = _order(str(visit.session.get("order", "")))
        number = 0 if case is None else case.number
        return Cases(self.desk.quarantine).around(number, **narrowed, order=order)

    def decide_source(self, visit: _Visit) -> Response:
        """Adopt a source, or keep holding its entries."""
        store, choice = self.desk.store, visit.form.get("choice")
        if store is None:
            raise HTTPException(409, "Nothing was done: no store is at hand; run the command.")
        if choice not in ("adopt", "keep"):
            raise HTTPException(400, "Nothing was done: the form names no decision.")
        if choice == "adopt" and self.desk.two_persons:
            raise HTTPException(403, "Nothing was done: a release needs a second person here.")
        key, by = visit.given("source"), visit.reviewer.name
        asked = {key_of(one.source): one for one in open_questions(self.desk.quarantine, store)}
        if key not in asked:
            return visit.to(
                "queue", told="Nothing was done: this source is not asked about any more."
            )
        source = asked[key].source
        named = (
            "The entries without a source"
            if source is None
            else f"Source {printable(source, 80)!r}"
        )
        if choice == "keep":
            store.keep_holding(source, by=by)
            return visit.to("queue", told=f"{named}: held entries stay held.")
        try:
            released = store.adopt_source(source, by=by)
        except (QuarantineError, ValueError) as error:
            return visit.to("queue", told=printable(str(error), 500))
        told = f"{named} is adopted; {_entries(len(released))} released into the store."
        return visit.to("queue", told=told)

    def undo(self, visit: _Visit) -> Response:
        """Take the latest decision back."""
        undoable = list(visit.session.get("undo", []))
        if not undoable:
            return visit.to("queue", told="There is nothing to take back in this session.")
        first, last = map(int, undoable.pop())
        try:
            done, told = _within_time(self.desk.undo((first, last), by=visit.reviewer.name))
        except QuarantineError as error:
            return visit.to("queue", told=printable(str(error), 300))
        n, at = sum(one.n_done for one in done), done[-1].lines[1]
        if at < last:
            undoable.append([at + 1, last])
            told += " Undo again goes on with the rest."
        visit.session["undo"] = undoable
        if n or at < last:
            return visit.to("queue", told=f"Taken back: {_entries(n)} {_wait(n)} again.{told}")
        told = "There is nothing to take back: it was taken back, or decided anew, since."
        return visit.to("queue", told=told)

    def text(self, visit: _Visit) -> Response:
        """Show a later part of a long text."""
        number, start = (visit.request.path_params[name] for name in ("number", "start"))
        held = Cases(self.desk.quarantine).entries([number]).get(number)
        if held is None:
            raise HTTPException(404, "There is no such entry.")
        length = len(held.entry.text)
        return self.show(
            visit,
            "text.html",
            held=held,
            start=min(start, length),
            stop=min(start + SHOWN, length),
            length=length,
            pieces=pieces(held.entry.text, held.findings, start),
        )

    def rules(self, visit: _Visit, status: int = 200, why: str | None = None) -> Response:
        """Show the rules and their states."""
        now = dt.datetime.now(dt.UTC)
        rules = Rules(self.desk.quarantine).list(every=True)
        return self.show(
            visit,
            "rules.html",
            status,
            rules=[(rule, rule.standing(now)) for rule in reversed(rules)],
            caution=CAUTION,
            days=DAYS,
            given={name: visit.given(name) for name in GIVEN},
            why=why,
        )

    def make_rule(self, visit: _Visit) -> Response:
        """Make a rule, or ask for a missing reason or duration."""
        days = visit.given("days")
        if days not in DAYS:
            return self.rules(visit, 400, "Say why, and for how long it shall count.")
        ends: dt.datetime | Literal["never"] = NEVER
        if days != NEVER:
            ends = dt.datetime.now(dt.UTC) + dt.timedelta(days=int(days))
        named = [one.strip() for one in visit.given("detectors").split(",")]
        try:
            rule = Rules(self.desk.quarantine).add(
                visit.given("source"),
                reason=visit.given("reason").strip(),
                by=visit.reviewer.name,
                expires_at=ends,
                detectors=list(filter(None, named)) or None,
            )
        except RuleError as error:
            return self.rules(visit, 400, printable(str(error), 500))
        return visit.to(
            "rules", told=f"Rule {rule.number} is in force; entries held before stay held."
        )

    def revoke_rule(self, visit: _Visit) -> Response:
        """Take a rule back."""
        number = visit.request.path_params["number"]
        reason = visit.given("reason").strip() or "revoked on the review page"
        try:
            Rules(self.desk.quarantine).revoke(number, by=visit.reviewer.name, reason=reason)
        except RuleError as error:
            return self.rules(visit, 409, printable(str(error), 500))
        return visit.to("rules", told=f"Rule {number} counts no more.")

    def feedback(self, visit: _Visit) -> Response:
        """Show detectors' and sources' rates, from reviewers' decisions."""
        guard = None if self.desk.store is None else self.desk.store.guard
        return self.show(visit, "feedback.html", feedback=reviewed(self.desk.quarantine, guard))

    def health(self, visit: _Visit, verified: str | None = None) -> Response:
        """Show the status of guard and quarantine."""
        return self.show(
            visit,
            "health.html",
            asked=source_view(self.desk.quarantine, self.desk.store),
            told_of_log=verified,
            **health_view(self.desk.quarantine, self.desk.store),
        )

    def verify(self, visit: _Visit) -> Response:
        """Check log and entries and show the result; the log records it for deciding reviewers."""
        by = visit.reviewer.name if visit.reviewer.role is Role.DECIDE else None
        try:
            self.desk.quarantine.log.verify(by=by)
            verified = f"Log and entries are whole; the head is {self.desk.quarantine.log.head()}"
        except QuarantineError as error:
            verified = f"BROKEN: {error}"
        return self.health(visit, printable(verified, 500))

    # Answers to refused and failed requests

    async def refused(self, request: Request, error: Exception) -> Response:
        """Return a page with the reason of the refusal."""
        assert isinstance(error, HTTPException)  # noqa: S101 - this handles no other error
        page = self.render(request, "refused.html", error.status_code, why=error.detail)
        for name, value in (error.headers or {}).items():
            page.headers[name] = value
        return page

    async def failed(self, request: Request, error: Exception) -> Response:
        """Return a page with the message of the database or the store."""
        return self.render(request, "refused.html", 503, why=printable(str(error), 500))

    # Inside

    def _case(self, number: int) -> Case:
        try:
            return Cases(self.desk.quarantine).show(number)
        except QuarantineError:
            msg = f"There is no case {number} here; it may have been purged."
            raise HTTPException(404, msg) from None

    def _case_page(self, visit: _Visit, case: Case, status: int = 200, **values: Any) -> Response:
        n_pages = max(1, -(-case.n_members // PAGE))
        page = min(visit.page, n_pages)
        view = case_view(self.desk.quarantine, self.desk.store, case, (page - 1) * PAGE)
        shown: dict[str, Any] = {
            "conflict": None,
            "rule_days": RULE_DAYS,
            "page": page,
            "n_pages": n_pages,
            "around": self._around(visit, case),
        }
        return self.show(visit, "case.html", status, **shown | values | view)

    def _tell(self, visit: _Visit, action: Action, done: Sequence[Decided]) -> str:
        """Return a message about the decision, which can be taken back in this session."""
        n, n_proposed = sum(one.n_done for one in done), sum(one.n_proposed for one in done)
        told = f"{_entries(n)} {DONE[action]}."
        if action is Action.RELEASE and n and self.desk.store is None:
            told += " No store is at hand: they are admitted when they are ingested again."
        if n_proposed:
            told += f" {n_proposed} wait for a second person to agree."
        if n and action in DECIDED:
            lines = [done[0].lines[0], done[-1].lines[1]]
            visit.session["undo"] = [*visit.session.get("undo", []), lines][-REMEMBERED:]
        return told


DONE = {
    Action.RELEASE: "released",
    Action.CONFIRM: "confirmed as poisoned",
    Action.KEEP: "kept waiting",
    Action.REOPEN: "reopened, to be decided anew",
}
NAMES_NONE = "Nothing was done: the form names no decision."


def _asked(visit: _Visit) -> tuple[Action, bool, list[int]]:
    """Return the decision in a form, whether it is on a whole case, and the chosen entries."""
    if reopened := visit.given("reopen"):
        return Action.REOPEN, reopened == "all", visit.numbers("reopen")
    if (named := visit.given("action")) not in DONE:
        raise HTTPException(400, NAMES_NONE)
    return Action(named), visit.given("all") == "yes", visit.numbers("entry")


def _within_time(
    steps: Iterable[Decided], seconds: float | None = None
) -> tuple[list[Decided], str]:
    """Carry out steps of a decision for some seconds; return outcomes and any error's message.

    An error of the first step is raised. An error of a later step leaves the rest unchanged.
    """
    end, done = time.monotonic() + (STEP if seconds is None else seconds), list[Decided]()
    try:
        for outcome in steps:
            done.append(outcome)
            if time.monotonic() >= end:
                break
    except RAGShieldError as error:
        if not done:
            raise
        return done, f" The rest was left: {printable(str(error), 300)}"
    return done, ""


def _numbers(given: Iterable[object], digits: int = 18) -> list[int]:
    """Return the given ASCII numbers; longer ones than ``digits`` do not fit all databases."""
    texts = [one for one in map(str, given) if len(one) <= digits]
    return [int(one) for one in texts if one.isascii() and one.isdecimal()]


def _narrowed(session: dict[str, Any]) -> dict[str, Any]:
    kept = session.get("filter", {})
    return {
        "waiting": {"no": False, "all": None}.get(kept.get("waiting"), True),
        "detector": kept.get("detector"),
        "source": kept.get("source"),
        "search": kept.get("search"),
    }


def _order(given: str) -> CaseOrder:
    """Return the order of that name, or by severity if there is none."""
    return CaseOrder(given) if given in list(CaseOrder) else CaseOrder.SEVERITY


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"


def _wait(count: int) -> str:
    return "waits" if count == 1 else "wait"
