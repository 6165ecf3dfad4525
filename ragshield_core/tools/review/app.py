"""The review page as an ASGI application."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
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
    CalibrationError,
    QuarantineError,
    RAGShieldError,
    RuleError,
    StalePreviewError,
)
from ragshield_core.model.findings import printable
from ragshield_core.quarantine import HeldEntry, Quarantine
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
from ragshield_core.tools.review.cases import LIMIT, Around, Case, Cases, Order
from ragshield_core.tools.review.cases import Page as Found
from ragshield_core.tools.review.desk import Action, ConflictError, Desk, Outcome, together
from ragshield_core.tools.review.feedback import apply, preview, reviewed
from ragshield_core.tools.review.quarantine_report import heading
from ragshield_core.tools.review.views import (
    COUNTED,
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
)
from ragshield_core.tools.rules import CAUTION, NEVER, Rules

HOURS = 8.0
SECRET_BYTES = 32
# Decisions that can be taken back within a session.
REMEMBERED = 10
# Seconds of a request that decides of a whole case: what is left is for the next one.
STEP = 1.0
# For how long a rule may count, in days.
DAYS = ("30", "90", "365", NEVER)
# Characters of a search, and of a reason.
LONGEST_SEARCH, LONGEST_NOTE = 200, 2_000
# What a form for a rule has asked for already.
GIVEN = ("source", "reason", "detectors")
# Of a number that a form or an address names, fewer.
DIGITS = 19

Page = Callable[["_Visit"], Response]


def review_app(
    store: Guarded | Quarantine,
    *,
    authenticate: Authenticate | None = None,
    token: str | Mapping[str, str] | None = None,
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
        A guarded store, into which entries are released at once; or a quarantine, from which they
        are released for the next ingestion.
    authenticate
        From a request to the :class:`Reviewer` who sends it, ``None`` for nobody: your
        application's own sessions decide. It is called for every request, in a thread.
    token
        Without ``authenticate``: what is asked for at a login. By the names of reviewers, the token
        of each, so that the log names whose it is; or one for all, whoever they say they are.
    two_persons
        Whether a release needs a second person. Off by default; each needs a token of their own.
    hours
        After which somebody has to log in again; 8 by default, a working day.
    secret
        With which cookies are signed; the same in all processes that serve the page. ``None``, the
        default, draws one: sessions end with the process then.
    https
        Whether the page is served over TLS, so that cookies never go any other way.
    hosts
        Names under which it may be reached, against pages that let their own name point here;
        ``None``, the default, for any, as within an application that sees to it.

    Raises
    ------
    ValueError
        If neither ``authenticate`` nor a token is given: it would be open to everybody. If there
        are not two tokens for two persons, or one of them is not a person's own.

    Examples
    --------
    >>> app = review_app(Quarantine("sqlite://"), token="of 32 random characters or more")
    """
    if authenticate is None:
        _check_token(token, two_persons=two_persons)
    quarantine = store if isinstance(store, Quarantine) else store.quarantine
    live = None if isinstance(store, Quarantine) else store
    desk = Desk(quarantine, live, two_persons=two_persons)
    access = Access(authenticate, token, hours * 3600.0)
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
            get("/progress", pages.progress),
            post("/progress", pages.go_on),
            post("/progress/stop", pages.stop),
            get("/rules", pages.rules),
            post("/rules", pages.make_rule),
            post("/rules/{number:number}/revoke", pages.revoke_rule),
            get("/feedback", pages.feedback),
            post("/feedback", pages.recalibrate),
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


def _check_token(token: str | Mapping[str, str] | None, *, two_persons: bool) -> None:
    """Refuse credentials that would not tell who decides.

    Raises
    ------
    ValueError
        Says what is expected.
    """
    if not token:
        msg = (
            "the review page would be open to everybody: pass authenticate=, a function from a "
            "request to a Reviewer or None, or token=, drawn at random."
        )
        raise ValueError(msg)
    tokens = {} if isinstance(token, str) else token
    if two_persons and len(tokens) < 2:  # noqa: PLR2004
        msg = (
            f"two_persons is True, and {len(tokens)} reviewers have a token of their own, expected "
            "two or more: pass token={name: token, ...}, drawn at random."
        )
        raise ValueError(msg)
    odd = not all(map(is_name, tokens)) or not all(tokens.values())
    if odd or len(set(tokens.values())) < len(tokens):
        msg = (
            f"token is of {[printable(name, LONGEST_NAME) for name in tokens]}, expected names of "
            f"1 to {LONGEST_NAME} characters, and for each a token that nobody else has."
        )
        raise ValueError(msg)


class _Number(Convertor[int]):
    """A number in an address, which every database can hold."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _Number())


class _Visit:
    """A request of somebody who may look."""

    def __init__(self, request: Request, reviewer: Reviewer, form: Any) -> None:
        self.request, self.reviewer, self.form = request, reviewer, form
        self.session: dict[str, Any] = request.session

    @property
    def page(self) -> int:
        """The number of the page that the address asks for, from 1 on."""
        given = self.request.query_params.get("page", "")
        return max(1, int(given)) if _is_number(given) and len(given) < 10 else 1  # noqa: PLR2004

    def given(self, name: str) -> str:
        """Return what a field of the form says, empty if nothing."""
        return str(self.form.get(name, ""))

    @property
    def note(self) -> str | None:
        """The reason that the form gives, if any."""
        return self.given("note").strip()[:LONGEST_NOTE] or None

    def to(self, name: str, *, told: str | None = None, **path: Any) -> RedirectResponse:
        """Return an answer that leads to another page, and what is told there."""
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
    why = None
    if request.method == "POST":
        why = pages.access.log_in(request, await request.form(max_files=0, max_fields=5))
        if why is None:
            return RedirectResponse(request.url_for("queue").path, status_code=303)
    named = pages.access.named
    return pages.render(request, "login.html", 200 if why is None else 401, why=why, named=named)


async def _logout(pages: _Pages, request: Request) -> Response:
    pages.access.check_form(request, await request.form(max_files=0, max_fields=5))
    pages.access.log_out(request)
    return RedirectResponse(request.url_for("queue").path, status_code=303)


class _Pages:
    """What is answered."""

    def __init__(self, desk: Desk, access: Access) -> None:
        self.desk, self.access = desk, access
        self._templates = Environment(
            loader=PackageLoader("ragshield_core.tools.review"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"printable": printable, "sentence": sentence}

    def show(self, visit: _Visit, name: str, status: int = 200, **values: Any) -> Response:
        """Return a page for somebody who may look."""
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
            "running": _running(session),
            "two_persons": self.desk.two_persons,
            "live": self.desk.store is not None,
            "quarantine": self.desk.quarantine,
            "reviewer": None,
        }
        page = self._templates.get_template(name).render(shared | values)
        return HTMLResponse(page, status)

    # Pages

    def queue(self, visit: _Visit) -> Response:
        """Show what waits."""
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
            last=cases.last() if there else 0,
            count=found.n_cases,
            n_waiting=cases.n_waiting() if there else 0,
            page=found.offset // LIMIT + 1,
            n_pages=max(1, -(-found.n_cases // LIMIT)),
            order=order,
            orders=list(Order),
            detectors=cases.detectors() if there else (),
            narrowed=narrowed,
        )

    def narrow(self, visit: _Visit) -> Response:
        """Take over filters; they are kept in the session, since addresses end in logs."""
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
        """Carry out a decision."""
        case = self._case(visit.request.path_params["number"])
        named, whole, numbers = _asked(visit)
        if named not in DONE:
            raise HTTPException(400, "Nothing was done: the form names no decision.")
        if _running(visit.session) is not None:
            return self.progress(visit, 409, FIRST)
        action, note = Action(named), visit.note
        following = self._around(visit, case).following
        if action is Action.RELEASE and visit.given("rule") and note is None:
            why = "Nothing was done: a rule needs a reason. Write why, and release again."
            return self._case_page(visit, case, 400, told=why)
        try:
            if whole:
                seen = visit.given("last")
                last = int(seen) if _is_number(seen) and len(seen) < DIGITS else None
                return self._step(visit, self.desk.begin(action, case, last=last), note)
            if not numbers:
                return self._case_page(visit, case, 400, told="Choose at least one entry.")
            outcome = self.desk.decide(action, numbers, by=visit.reviewer.name, note=note)
        except ConflictError as conflict:
            return self._case_page(visit, case, 409, conflict=conflict)
        except QuarantineError as error:
            return self._case_page(visit, case, 409, told=printable(str(error), 500))
        self._tell(visit, outcome)
        if action is Action.RELEASE and outcome.n_done:
            self._rule_too(visit, numbers)
        done = action is Action.KEEP or outcome.n_proposed
        if action is Action.REOPEN or (not done and self._case(case.number).n_waiting):
            return visit.to("case", number=case.number)
        return self._next(visit, case.number, following)

    def _rule_too(self, visit: _Visit, numbers: Sequence[int]) -> None:
        """Make a rule of a release, if that was ticked; what became of it is told."""
        if not visit.given("rule"):
            return
        quarantine = self.desk.quarantine
        source = rulable(list(Cases(quarantine).entries(numbers).values()))
        told = "No rule was made: none excuses all of these entries."
        if source is not None:
            ends = dt.datetime.now(dt.UTC) + dt.timedelta(days=RULE_DAYS)
            try:
                rule = Rules(quarantine).add(
                    source, reason=visit.note or "", by=visit.reviewer.name, expires_at=ends
                )
                told = f"Rule {rule.number} is in force for {RULE_DAYS} days."
            except RuleError as error:
                told = f"No rule was made: {printable(str(error), 300)}"
        visit.session["told"] += f" {told}"

    def decide_cases(self, visit: _Visit) -> Response:
        """Decide of several cases, as they were shown in the queue."""
        named, seen = visit.form.get("action"), visit.given("last")
        if named not in SEVERAL or not _is_number(seen) or len(seen) >= DIGITS:
            raise HTTPException(400, "Nothing was done: the form names no decision.")
        if _running(visit.session) is not None:
            return self.progress(visit, 409, FIRST)
        given = [str(value) for value in visit.form.getlist("case")]
        numbers = [int(one) for one in given if _is_number(one) and len(one) < DIGITS]
        if not numbers:
            return visit.to("queue", told="Choose at least one case.")
        action, by = Action(named), visit.reviewer.name
        done: list[Outcome] = []
        left: list[int] = []
        why = ""
        try:
            for number in numbers:
                outcome = self.desk.decide_seen(action, number, int(seen), by=by, note=visit.note)
                left += [number] if outcome is None else []
                done += [] if outcome is None else [outcome]
        except RAGShieldError as error:  # what was decided before stays so, and can be taken back
            why = f" The rest was left: {printable(str(error), 300)}"
        if done:
            self._tell(visit, together(done))
        told = visit.session.pop("told", "Nothing was done.") + why
        if left:
            told += f" Open these, which are large or have changed: {_cases(left)}."
        return visit.to("queue", told=told)

    def _around(self, visit: _Visit, case: Case) -> Around:
        """Return the neighbours of a case in the queue, as the person has narrowed and sorted it.

        Without the search, which would read all texts again for each case.
        """
        narrowed = _narrowed(visit.session) | {"search": None}
        order = _order(str(visit.session.get("order", "")))
        return Cases(self.desk.quarantine).around(case, **narrowed, order=order)

    def _next(self, visit: _Visit, number: int, following: int | None) -> Response:
        """Lead to the next case, or to the first one behind the last one, or to the queue."""
        if following is None:
            narrowed = _narrowed(visit.session) | {"search": None}
            order = _order(str(visit.session.get("order", "")))
            cases = Cases(self.desk.quarantine).page(**narrowed, order=order, limit=1).cases
            following = next((one.number for one in cases if one.number != number), None)
        return visit.to("queue") if following is None else visit.to("case", number=following)

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
        named = "What names no source" if source is None else f"Source {printable(source, 80)!r}"
        if choice == "keep":
            store.keep_holding(source, by=by)
            return visit.to("queue", told=f"{named}: what is held stays held.")
        try:
            released = store.adopt_source(source, by=by)
        except (QuarantineError, ValueError) as error:
            return visit.to("queue", told=printable(str(error), 500))
        told = f"{named} is adopted; {_entries(len(released))} released into the store."
        return visit.to("queue", told=told)

    def undo(self, visit: _Visit) -> Response:
        """Take the latest decision back."""
        if _running(visit.session) is not None:
            return self.progress(visit, 409, FIRST)
        undoable = list(visit.session.get("undo", []))
        if not undoable:
            return visit.to("queue", told="There is nothing to take back in this session.")
        first, last = map(int, undoable.pop())
        visit.session["undo"] = undoable
        try:
            return self._step(visit, self.desk.undo((first, last)))
        except QuarantineError as error:
            return visit.to("queue", told=printable(str(error), 300))

    # What takes longer than a request should

    def progress(self, visit: _Visit, status: int = 200, why: str | None = None) -> Response:
        """Show how far a decision is carried out."""
        if _running(visit.session) is None:
            return visit.to("queue")
        return self.show(visit, "progress.html", status, why=why)

    def go_on(self, visit: _Visit) -> Response:
        """Carry it on for a second."""
        running = _running(visit.session)
        if running is None:
            return self._onwards(visit, visit.to("queue"))
        try:
            note = None
            if running.case is not None:
                note = self.desk.reason(running, by=visit.reviewer.name)
            return self._onwards(visit, self._step(visit, running, note))
        except RAGShieldError as error:
            return self.progress(visit, why=printable(str(error), 500))

    def stop(self, visit: _Visit) -> Response:
        """Leave the rest as it is."""
        running = _running(visit.session)
        if running is None:
            return visit.to("queue")
        return self._ended(visit, running, "Stopped: ")

    def _step(self, visit: _Visit, running: Outcome, note: str | None = None) -> Response:
        """Carry a decision on for a second; what is left is noted in the session."""
        by = visit.reviewer.name
        outcome = self.desk.go_on(running, by=by, note=note, seconds=STEP)
        if outcome.finished:
            return self._ended(visit, outcome)
        visit.session["running"] = asdict(outcome)
        return visit.to("progress")

    def _ended(self, visit: _Visit, outcome: Outcome, before: str = "") -> Response:
        visit.session.pop("running", None)
        self._tell(visit, outcome, before)
        if outcome.case is None:
            return visit.to("queue")
        return visit.to("case", number=outcome.case)

    @staticmethod
    def _onwards(visit: _Visit, answer: Response) -> Response:
        """Return an answer that leads on, also from a part of a page that htmx has asked for."""
        leads = answer.headers.get("location")
        here = visit.request.url_for("progress").path
        if leads is None or leads == here or "hx-request" not in visit.request.headers:
            return answer
        return Response(headers={"hx-redirect": leads})

    def text(self, visit: _Visit) -> Response:
        """Show a later part of a long text."""
        start = visit.request.path_params["start"]
        held = self._entry(visit)
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
        """Show the rules, and what they are worth."""
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
        """Make a rule, or ask for the reason and the time that it needs."""
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
            "rules", told=f"Rule {rule.number} is in force; what is held already stays held."
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

    def feedback(self, visit: _Visit, status: int = 200, why: str | None = None) -> Response:
        """Show what decisions say of detectors and sources, and thresholds by them."""
        quarantine, store = self.desk.quarantine, self.desk.store
        guard = None if store is None else store.guard
        seen = None
        if guard is not None and guard.calibrated:
            seen = preview(guard, quarantine)
        return self.show(
            visit,
            "feedback.html",
            status,
            feedback=reviewed(quarantine, guard),
            preview=seen,
            why=why,
        )

    def recalibrate(self, visit: _Visit) -> Response:
        """Let released entries count, if thresholds and queue are as they were shown."""
        store = self.desk.store
        if store is None:
            return self.feedback(visit, 409, "No guard is at hand: nothing was changed.")
        try:
            seen = preview(store.guard, self.desk.quarantine)
            if seen.token != visit.given("token"):
                why = "Thresholds or the queue have changed since: this is how it stands now."
                return self.feedback(visit, 409, why)
            apply(seen, by=visit.reviewer.name, note=visit.note)
        except (CalibrationError, StalePreviewError) as error:
            return self.feedback(visit, 409, printable(str(error), 500))
        return visit.to(
            "feedback", told="Released entries count in the thresholds now; what waits waits on."
        )

    def health(self, visit: _Visit, verified: str | None = None) -> Response:
        """Show how guard and quarantine stand."""
        return self.show(
            visit,
            "health.html",
            asked=source_view(self.desk.quarantine, self.desk.store),
            told_of_log=verified,
            **health_view(self.desk.quarantine, self.desk.store),
        )

    def verify(self, visit: _Visit) -> Response:
        """Check log and entries, and show what came out; the log is told if they may decide."""
        by = visit.reviewer.name if visit.reviewer.role is Role.DECIDE else None
        try:
            self.desk.quarantine.log.verify(by=by)
            verified = f"Log and entries are whole; the head is {self.desk.quarantine.log.head()}"
        except QuarantineError as error:
            verified = f"BROKEN: {error}"
        return self.health(visit, printable(verified, 500))

    # Answers to what cannot be done

    async def refused(self, request: Request, error: Exception) -> Response:
        """Say why not."""
        assert isinstance(error, HTTPException)  # noqa: S101 - of whose handler this is
        page = self.render(request, "refused.html", error.status_code, why=error.detail)
        for name, value in (error.headers or {}).items():
            page.headers[name] = value
        return page

    async def failed(self, request: Request, error: Exception) -> Response:
        """Say what the database or the store says."""
        return self.render(request, "refused.html", 503, why=printable(str(error), 500))

    # Inside

    def _case(self, number: int) -> Case:
        try:
            return Cases(self.desk.quarantine).show(number)
        except QuarantineError:
            msg = f"There is no case {number} here; it may have been purged."
            raise HTTPException(404, msg) from None

    def _entry(self, visit: _Visit) -> HeldEntry:
        number = visit.request.path_params["number"]
        held = Cases(self.desk.quarantine).entries([number]).get(number)
        if held is None:
            raise HTTPException(404, "There is no such entry.")
        return held

    def _case_page(self, visit: _Visit, case: Case, status: int = 200, **values: Any) -> Response:
        n_pages = max(1, -(-case.n_members // PAGE))
        page = min(visit.page, n_pages)
        view = case_view(self.desk.quarantine, self.desk.store, case, (page - 1) * PAGE)
        shown: dict[str, Any] = {
            "conflict": None,
            "counted": COUNTED,
            "rule_days": RULE_DAYS,
            "page": page,
            "n_pages": n_pages,
        }
        shown["around"] = self._around(visit, case)
        return self.show(visit, "case.html", status, **shown | values | view)

    def _tell(self, visit: _Visit, outcome: Outcome, before: str = "") -> None:
        """Note in the session what was done, to be told on the next page and to be taken back."""
        n, session = outcome.n_done, visit.session
        if outcome.action is Action.UNDO:
            again = not outcome.finished
            told = f"{before}Taken back: {_entries(n)} {'waits' if n == 1 else 'wait'} again."
            if outcome.finished and not n:
                told = "There is nothing to take back: it was taken back, or decided anew, since."
        else:
            again = n > 0 and outcome.action in (Action.RELEASE, Action.CONFIRM)
            told = f"{before}{_entries(n)} {DONE[outcome.action]}."
        if outcome.action is Action.RELEASE and n and self.desk.store is None:
            told += " No store is at hand: they are admitted when they are ingested again."
        if outcome.n_proposed:
            told += f" {outcome.n_proposed} wait for a second person to agree."
        session["told"] = told
        if again:
            session["undo"] = [*session.get("undo", []), list(outcome.lines)][-REMEMBERED:]


DONE = {
    Action.RELEASE: "released",
    Action.CONFIRM: "confirmed as poisoned",
    Action.KEEP: "kept waiting",
    Action.REOPEN: "reopened, to be decided anew",
}
# What is decided of several cases at once.
SEVERAL = (Action.RELEASE, Action.CONFIRM, Action.KEEP)
FIRST = "Another decision of yours is still being carried out: let it come to its end, or stop it."


def _asked(visit: _Visit) -> tuple[str, bool, list[int]]:
    """Return the decision that a form names, whether of a whole case, and the chosen entries."""
    named, whole = visit.given("action"), visit.given("all") == "yes"
    given = [str(value) for value in visit.form.getlist("entry")]
    if reopened := visit.given("reopen"):
        named, whole, given = Action.REOPEN, reopened == "all", [reopened]
    return named, whole, [int(value) for value in given if _is_number(value)]


def _is_number(text: str) -> bool:
    """Return whether it is a number as forms write them, in digits of ASCII."""
    return text.isascii() and text.isdecimal()


def _running(session: dict[str, Any]) -> Outcome | None:
    """Return the decision that the session has begun and not finished."""
    kept = session.get("running")
    if kept is None:
        return None
    values = {"action": Action(kept["action"]), "lines": tuple(kept["lines"])}
    return Outcome(**kept | values)


def _narrowed(session: dict[str, Any]) -> dict[str, Any]:
    kept = session.get("filter", {})
    return {
        "waiting": {"no": False, "all": None}.get(kept.get("waiting"), True),
        "detector": kept.get("detector"),
        "source": kept.get("source"),
        "search": kept.get("search"),
    }


def _order(given: str) -> Order:
    """Return the order that somebody asks for, by severity if none."""
    return Order(given) if given in list(Order) else Order.SEVERITY


def _cases(numbers: Sequence[int]) -> str:
    return ", ".join(f"case {number}" for number in numbers)


def _entries(count: int) -> str:
    return f"{count:,} {'entry' if count == 1 else 'entries'}"
