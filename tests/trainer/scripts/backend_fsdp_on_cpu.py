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
"""FSDP on the CPU, which neither accelerate nor torch means to support. For tests only; imported before a Trainer is made.

Each function works around one thing that keeps it from running, or from giving right results:

| where | what happens on the CPU without this |
| --- | --- |
| accelerate | a process group of CPUs is never turned into FSDP: FSDP2 silently becomes DDP, FSDP1 is refused |
| FSDP1, full state dict | "offloading" a tensor that is on the CPU gives an alias, whose storage is then freed |
| FSDP1, optimizer state | all states of a parameter are gathered through one buffer, and copying it out is an alias too |
"""

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.fsdp._optim_utils as fsdp1_optimizer
import torch.distributed.fsdp._state_dict_utils as fsdp1_state
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType


def _as_if_on_devices(build: Callable) -> Callable:
    @functools.wraps(build)
    def init(self: AcceleratorState, *args: Any, **kwargs: Any) -> None:
        asked = kwargs.get("fsdp_plugin") is not None or os.environ.get("ACCELERATE_USE_FSDP") == "true"
        if asked and not AcceleratorState._shared_state:
            shared = PartialState(cpu=True)._shared_state
            if shared["distributed_type"] == DistributedType.MULTI_CPU:
                # FSDP1 compares this device with its own, and "cpu:0" is not "cpu" to it.
                shared.update(distributed_type=DistributedType.MULTI_GPU, device=torch.device("cpu"))
        build(self, *args, **kwargs)

    return init


def _without_offloading(unshard: Callable) -> Callable:
    @functools.wraps(unshard)
    def hook(module: Any, fsdp_state: Any, offload_to_cpu: bool, rank0_only: bool) -> Any:
        return unshard(module, fsdp_state, False, rank0_only)

    return hook


def _with_copies(unflatten: Callable) -> Callable:
    @functools.wraps(unflatten)
    def states(fsdp_param_info: Any, output_states: Any, state_name: str, *args: Any, **kwargs: Any) -> Any:
        for gathered in output_states.values():
            value = gathered.get(state_name)
            if isinstance(value, torch.Tensor):
                gathered[state_name] = value.detach().clone()
        return unflatten(fsdp_param_info, output_states, state_name, *args, **kwargs)

    return states


def enable() -> None:
    """Make FSDP1 and FSDP2 work on the CPU in this process."""
    AcceleratorState.__init__ = _as_if_on_devices(AcceleratorState.__init__)
    fsdp1_state._common_unshard_pre_state_dict_hook = _without_offloading(
        fsdp1_state._common_unshard_pre_state_dict_hook
    )
    fsdp1_optimizer._unflatten_orig_param_states = _with_copies(fsdp1_optimizer._unflatten_orig_param_states)
