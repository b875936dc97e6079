# Copyright: gpuops.rdma contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""skopeo, for carry.sh, as its manual describes it: skopeo-sync(1), skopeo-copy(1). It copies names alone.

skopeo sync --all --scoped --keep-going --src yaml --dest dir FILE DIR    the images of FILE become folders of DIR
skopeo copy --all dir:PATH docker://IMAGE                                 the image goes to the file $CARRIED
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

SERVER = {"images", "images-by-tag-regex", "images-by-semver", "credentials", "tls-verify", "cert-dir"}


def sync(file: Path, folder: Path) -> None:
    for host, server in yaml.safe_load(file.read_text("utf-8")).items():
        assert set(server) <= SERVER, server
        for repository, tags in server["images"].items():
            assert tags and all(isinstance(tag, str) for tag in tags), f"{repository}: no tags are all tags"
            for tag in tags:
                place = folder / host / f"{repository}{'@' if tag.startswith('sha256:') else ':'}{tag}"
                place.mkdir(parents=True, exist_ok=True)
                (place / "manifest.json").write_text("{}")


def copy(source: str, target: str) -> None:
    assert (Path(source.removeprefix("dir:")) / "manifest.json").is_file(), f"{source} was not pulled"
    with Path(os.environ["CARRIED"]).open("a", encoding="utf-8") as carried:
        carried.write(target.removeprefix("docker://") + "\n")


if __name__ == "__main__":
    verb, *rest = sys.argv[1:]
    options, (one, other) = rest[:-2], rest[-2:]
    if verb == "sync":
        assert options == ["--all", "--scoped", "--keep-going", "--src", "yaml", "--dest", "dir"], options
        sync(Path(one), Path(other))
    else:
        assert verb == "copy" and options == ["--all"], sys.argv
        copy(one, other)
