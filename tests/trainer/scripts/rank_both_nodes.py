# Copyright 2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Start `rank_nodes.py` on two nodes, which are network namespaces of the names given, and wait for both.

    rank_both_nodes.py --folder F NODE NODE

Each node has a disk of its own at `F/own` and shares `F/shared`. Needs root.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path


SCRIPT = Path(__file__).with_name("rank_nodes.py")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("nodes", nargs=2)
    options = parser.parse_args()
    started = []
    for number, node in enumerate(options.nodes):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node_rank", str(number)]
        command += ["--nproc_per_node", "1", "--master_addr", "10.214.0.1", "--master_port", "29432", str(SCRIPT)]
        for name in ("shared", "own"):
            command += [f"--{name}", str(options.folder / name)]
        mount = f'mount -t tmpfs none "{options.folder / "own"}" && exec "$@"'
        started.append(
            subprocess.Popen(
                ["ip", "netns", "exec", node, "unshare", "-m", "sh", "-c", mount, "sh"]
                + [*command, "--folder", str(options.folder)],
                env={**os.environ, "GLOO_SOCKET_IFNAME": f"up{number}"},
            )
        )
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    sys.exit(main())
