"""What any HTTP gateway costs: an aiohttp server that passes body and stream on, as a process.

Invariant: it reads nothing of either and keeps nothing.
"""

import sys

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

from benchmarks.gateway_child import serve_until_told
from benchmarks.gateway_http import SESSION_HEADER

BODY_BYTES_MAX = 64 << 20


async def main() -> None:
    address = f"http://127.0.0.1:{sys.argv[1]}"

    async def forward(request: web.Request) -> web.StreamResponse:
        headers = {
            "content-type": "application/json",
            SESSION_HEADER: request.headers[SESSION_HEADER],
        }
        body = await request.read()
        async with session.post(address + request.path, data=body, headers=headers) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for data in answer.content.iter_any():
                await response.write(data)
            await response.write_eof()
            return response

    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.add_routes([web.post("/{path:.*}", forward)])
    connector, timeout = TCPConnector(limit=0), ClientTimeout(total=None)
    async with ClientSession(connector=connector, timeout=timeout) as session:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        await serve_until_told(runner.addresses[0][1])
        await runner.cleanup()


if __name__ == "__main__":
    uvloop.run(main())
