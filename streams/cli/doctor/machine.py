"""Whether the machine is large enough, asked before anything is started on it."""

import os

from streams.cli.doctor.finding import Finding, failed, ok


def memory(least_mb: int) -> Finding:
    """The memory of the machine, or of the virtual one that containers run in."""
    found_mb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1_000_000
    detail = f"{found_mb:,} MB"
    if found_mb >= least_mb:
        return ok("memory", detail)
    return failed(
        "memory",
        f"{detail}, but {least_mb:,} MB are needed",
        "give the machine more, or the container engine's virtual one (Docker Desktop: Settings, "
        "Resources)",
    )
