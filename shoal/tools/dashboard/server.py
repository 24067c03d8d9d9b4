"""The page's web server: its addresses, and who may see them.

A request must have the token: in the URL that the command prints, or in the cookie that this URL
sets. It must also use a name of this machine, so that a web page under another name that leads here
(DNS rebinding) cannot read the job. All requests are GET, and change nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from shoal.errors import UserError
from shoal.tools.dashboard.jobs import Jobs
from shoal.tools.dashboard.watch import Watch

STATIC = Path(__file__).with_name("static")

HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Names of this machine, at any port: `ssh -L` may lead here from another one."""

HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

Send = Callable[..., Any]


def app_of(jobs: Jobs, token: str, port: int) -> Guard:
    """The application that shows jobs: the list of them at /, one at /?job=NAME.

    token: opens the pages to those who know it. port: that of the pages.
    """

    def page(request: Request) -> Response:
        if "token" in request.query_params:
            # So that it is not in the address and its history; from now on the cookie has it.
            query = f"?{urlencode({'job': jobs.named.name})}" if jobs.named else ""
            answer: Response = RedirectResponse(f"/{query}", 303)
            answer.set_cookie(cookie_of(port), token, httponly=True, samesite="lax", path="/")
            return answer
        name = "page.html" if "job" in request.query_params else "jobs.html"
        return Response((STATIC / name).read_bytes(), media_type="text/html")

    def of_job(tell: Callable[[Watch, Request], Any]) -> Callable[[Request], Response]:
        """Answers with what is told of the job that a request names, or of the named one."""

        def answer(request: Request) -> Response:
            try:
                watch = jobs.watch(request.query_params.get("job", ""))
            except UserError as error:
                return PlainTextResponse(str(error), 404)
            return JSONResponse(tell(watch, request))

        return answer

    def log(watch: Watch, request: Request) -> dict[str, Any]:
        return _or_error(lambda: watch.log(request.path_params["name"]))

    routes = [
        Route("/", page),
        Route("/jobs", lambda _: JSONResponse(jobs.listed())),
        Route("/facts", of_job(lambda watch, _: watch.facts())),
        Route("/course", of_job(lambda watch, _: watch.course())),
        Route("/logs", of_job(lambda watch, _: _or_error(watch.logs))),
        Route("/logs/{name}", of_job(log)),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Guard(Starlette(routes=routes), token, port)


def cookie_of(port: int) -> str:
    """The name of the cookie: pages at other ports of this machine are given it, too."""
    return f"shoal_dashboard_{port}"


def _or_error(ask: Callable[[], list[str]]) -> dict[str, Any]:
    try:
        return {"lines": ask()}
    except UserError as error:
        return {"lines": [], "error": str(error)}


class Guard:
    """An ASGI application in front of `app`, which refuses requests without the token."""

    def __init__(self, app: Any, token: str, port: int) -> None:
        self._app, self._token, self._cookie = app, token.encode(), cookie_of(port)

    async def __call__(self, scope: dict[str, Any], receive: Send, send: Send) -> None:
        """Answer a request."""
        assert scope["type"] == "http", scope["type"]  # the server has no websockets, no lifespan

        async def with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *more]}
            await send(message)

        request = Request(scope)
        app = self._app
        if why := self._refused(request):
            app = PlainTextResponse(f"{why}\n", 403)
        elif request.method not in ("GET", "HEAD"):
            app = PlainTextResponse("This page only shows the job.\n", 405)
        await app(scope, receive, with_headers)

    def _refused(self, request: Request) -> str:
        host = request.headers.get("host", "")
        name, colon, port = host.rpartition(":")
        if (name if colon and port.isdigit() else host).lower() not in HOSTS:
            return "This page is shown under the names 127.0.0.1 and localhost only."
        # Other pages of this machine may have set a cookie of this name, with any content.
        kept = request.cookies.get(self._cookie, "")
        given = request.query_params.get("token", kept)
        if not secrets.compare_digest(given.encode(), self._token):
            return (
                "This page needs its token: open the whole address that the command has printed, "
                "with ?token= and what follows."
            )
        return ""
