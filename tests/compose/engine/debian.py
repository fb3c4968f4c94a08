"""Packages of a Debian suite that need not be this machine's, and a small system made of them.

    this machine's apt configuration ──► its mirror, under another suite ──► private lists
                                                                     ├──► packages, unpacked
                                                                     └──► debootstrap: a tarball

Which mirror that is, is asked of apt when it is needed and stands in no file of the project. What
apt verifies there, it verifies here: the suite's signature by the machine's own keyring.

Invariant: nothing is installed and no setting of the machine's apt changes; whatever is written
lies below the folder that was given.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
FETCH_SECONDS_MAX = 600.0


class NotDebian(RuntimeError):
    """This machine cannot make what is asked; the text says what it lacks."""


def run(*command: str | Path, apt_configuration: Path | None = None) -> str:
    """What a program prints; `NotDebian` with its last lines if it fails."""
    variables = {"LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    if apt_configuration is not None:
        variables["APT_CONFIG"] = str(apt_configuration)
    try:
        done = subprocess.run(
            command,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS_MAX,
            check=False,
        )
    except FileNotFoundError:
        raise NotDebian(f"no `{command[0]}` here: this needs Debian") from None
    except subprocess.TimeoutExpired:
        raise NotDebian(f"`{command[0]}` did not end in {FETCH_SECONDS_MAX:g} s") from None
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise NotDebian(f"`{' '.join(map(str, command))}` ended with {done.returncode}:\n{last}")
    return done.stdout


def machine_mirror() -> str:
    """Where this machine's own apt gets the main part of its Debian release from."""
    release = dict(
        line.split("=", 1) for line in Path("/etc/os-release").read_text("utf-8").splitlines()
    )
    own = release.get("VERSION_CODENAME", "").strip('"')
    form = "$(CODENAME) $(COMPONENT) $(REPO_URI)"
    targets = run("apt-get", "indextargets", "--format", form, "Created-By: Packages")
    for line in targets.splitlines():
        words = line.split()
        if words[:2] == [own, "main"]:
            return words[2]
    raise NotDebian("apt knows no Debian release of this machine's: run `apt-get update` once")


@dataclass(frozen=True, slots=True)
class Suite:
    """One suite on this machine's mirror, with lists of its own."""

    name: str
    folder: Path
    mirror: str

    @classmethod
    def opened(cls, name: str, folder: Path) -> "Suite":
        """The lists as the mirror has them now."""
        suite = cls(name, folder, machine_mirror())
        for part in ("state/lists/partial", "cache/archives/partial", "parts", "packages"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text(
            f"deb [signed-by={KEYRING}] {suite.mirror} {name} main\n", "utf-8"
        )
        settings = {
            "Dir::Etc::sourcelist": folder / "sources.list",
            "Dir::Etc::sourceparts": folder / "parts",
            "Dir::Etc::preferencesparts": folder / "parts",
            "Dir::State": folder / "state",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            # Root's own folders are closed to the user that apt would otherwise become.
            "APT::Sandbox::User": "root",
        }
        lines = (f'{key} "{value}";\n' for key, value in settings.items())
        suite._configuration.write_text("".join(lines), "utf-8")
        suite._apt("update")
        return suite

    def versions(self, *packages: str) -> dict[str, str]:
        """What `unpacked` would give of each."""
        found = {}
        for package in packages:
            told = run(
                "apt-cache",
                "show",
                "--no-all-versions",
                package,
                apt_configuration=self._configuration,
            )
            (version,) = (
                line.split(": ")[1] for line in told.splitlines() if line.startswith("Version: ")
            )
            found[package] = version
        return found

    def unpacked(self, packages: tuple[str, ...], into: Path) -> None:
        """The files of these packages alone, below a folder; the folder is there at once or not."""
        fetched, unfinished = self.folder / "packages", into.with_suffix(".part")
        for old in (fetched, unfinished, into):
            shutil.rmtree(old, ignore_errors=True)
            old.parent.mkdir(parents=True, exist_ok=True)
        fetched.mkdir()
        unfinished.mkdir()
        # Without a folder option of its own, apt writes to where it runs.
        run("sh", "-c", 'cd "$1" && shift && exec apt-get -qq download "$@"', "sh", fetched,
            *packages, apt_configuration=self._configuration)  # fmt: skip
        for package in sorted(fetched.glob("*.deb")):
            run("dpkg-deb", "--extract", package, unfinished)
        unfinished.rename(into)

    def system(self, tarball: Path) -> None:
        """The least that Debian runs on, as one file; it takes about two minutes."""
        tree, unfinished = self.folder / "system", tarball.with_suffix(".part")
        shutil.rmtree(tree, ignore_errors=True)
        try:
            run("debootstrap", "--variant=minbase", f"--keyring={KEYRING}", self.name, tree,
                self.mirror)  # fmt: skip
            for kept in ("var/cache/apt/archives", "var/lib/apt/lists"):
                shutil.rmtree(tree / kept)
                (tree / kept / "partial").mkdir(parents=True)
            run("tar", "--create", "--file", unfinished, "--directory", tree, "--exclude=./dev/*",
                "--exclude=./proc/*", "--exclude=./sys/*", ".")  # fmt: skip
        finally:
            shutil.rmtree(tree, ignore_errors=True)
        unfinished.rename(tarball)

    @property
    def _configuration(self) -> Path:
        return self.folder / "apt.conf"

    def _apt(self, *words: str) -> str:
        return run("apt-get", "-qq", *words, apt_configuration=self._configuration)
