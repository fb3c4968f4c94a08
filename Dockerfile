# The image of every service of ours. The lock is the one that the tests ran with; of its packages
# the image gets what `turnstream` and its trackio sink need, each checked by its hash, and nothing is compiled.

FROM python:3.11.15-slim-trixie AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV UV_CACHE_DIR=/cache UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
WORKDIR /build

# uv and hatchling stand in the lock: pip fetches the one, the one fetches the other.
COPY requirements.txt ./
RUN sed -n '/^uv==/,/[^\\]$/p' requirements.txt > uv.txt \
    && sed -n '/^hatchling==/,/[^\\]$/p' requirements.txt > hatchling.txt \
    && pip install --no-cache-dir --require-hashes -r uv.txt \
    && uv pip install --system --no-build --require-hashes -c requirements.txt -r hatchling.txt

# As a constraint the lock gives versions and hashes, but no package that nothing asks for. A
# dependency that the lock does not hold ends the build. Bytecode is made here, because the
# services run on a file system that they cannot write to.
COPY pyproject.toml README.md LICENSE ./
COPY schemas schemas
COPY streams streams
RUN --mount=type=cache,target=/cache \
    python -m hatchling build -t wheel -d dist \
    && sha256sum dist/*.whl | sed -E 's|^([0-9a-f]+) +(.*)|./\2[trackio] --hash=sha256:\1|' > wheel.txt \
    && python -m venv --without-pip /opt/turnstream \
    && uv pip install --python /opt/turnstream/bin/python --no-build --compile-bytecode \
        --require-hashes -c requirements.txt -r wheel.txt

FROM python:3.11.15-slim-trixie
ENV PATH=/opt/turnstream/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
RUN groupadd --gid 10001 turnstream \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin turnstream \
    && mkdir /data && chown 10001:10001 /data
COPY --from=build /opt/turnstream /opt/turnstream
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["turnstream"]
