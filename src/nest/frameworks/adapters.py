"""What settings say of adapters and of the loss: of Axolotl, LLaMA-Factory, TRL and torchtitan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nest.errors import InputError
from nest.frameworks.settings import Plain, Words
from nest.frameworks.source import Source, typed
from nest.frameworks.text.python_text import PythonCall
from nest.inputs.job import is_adapter
from nest.inputs.model import Model
from nest.inputs.trainable import Trainable
from nest.units import shorten

ADAPTERS: Mapping[str, tuple[Any, ...]] = {"finetuning_type": ("full",), "adapter": (None, "")}
"""Settings that train a part of the parameters, and values that train all."""
_LORA = {"lora_r": "rank", "lora_rank": "rank", "lora_target_modules": "targets",
         "lora_target": "targets", "lora_dropout": "dropout"}
_SAVED = {"embed_tokens": "embedding", "lm_head": "head"}
"""Parts by the names of modules that are trained beside adapters."""
_QUANTIZED = {("load_in_4bit", True): "nf4", ("load_in_8bit", True): "int8",
              ("quantization_bit", 4): "nf4", ("quantization_bit", 8): "int8"}
"""Formats of frozen weights by what asks for them: axolotl-ai-cloud/axolotl@067b021
src/axolotl/loaders/model.py (bnb_4bit_quant_type nf4), hiyouga/LLaMA-Factory@ff6d4d1
src/llamafactory/hparams/model_args.py:283."""
_COSTLESS = ("lora_alpha", "lora_fan_in_fan_out", "lora_on_cpu", "lora_model_dir",
             "peft_use_rslora", "use_rslora", "loraplus_lr_ratio", "loraplus_lr_embedding")
_CUT = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
_TRL: Mapping[str, Any] = {
    "use_peft": False, "lora_r": 16, "lora_dropout": 0.05, "lora_target_modules": None,
    "lora_modules_to_save": (), "load_in_4bit": False, "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4", "use_dora": False, "lora_target_parameters": None}
"""Arguments of TRL that decide adapters, with their defaults: trl==0.25.1
trl/trainer/model_config.py:108 to 183."""
_TRL_FREE = ("lora_alpha", "lora_task_type", "use_rslora", "use_bnb_nested_quant")
LIGER = "use_liger_kernel"
"""Argument of Hugging Face's Trainer (transformers==5.23.0 src/transformers/training_args.py:957),
which fuses the head's product with the loss (liger-kernel==0.6.4
liger_kernel/transformers/monkey_patch.py, fused_linear_cross_entropy of each model but Granite)."""
_TITAN = {"wq": ("q_proj",), "wk": ("k_proj",), "wv": ("v_proj",), "wkv": ("k_proj", "v_proj"),
          "wqkv": ("q_proj", "k_proj", "v_proj"), "wo": ("o_proj",), "w1": ("gate_proj",),
          "w2": ("down_proj",), "w3": ("up_proj",), "wq_a": ("q_a_proj",), "wq_b": ("q_b_proj",),
          "wkv_a": ("kv_a_proj_with_mqa",), "wkv_b": ("kv_b_proj",)}
"""Targets by the names of torchtitan's linear layers: torchtitan==0.3.0
torchtitan/models/llama3/state_dict_adapter.py:31, torchtitan/models/common/attention.py:751."""
_TITAN_DENSE = ("w1", "w2", "w3")


def trainable_of(there: Plain, defaults: Plain, source: Source) -> Trainable | None:
    """Adapters that a file asks for; None: all is trained. Their settings are taken out.

    Defaults of LLaMA-Factory: rank 8 in all linear layers (hiyouga/LLaMA-Factory@ff6d4d1
    src/llamafactory/hparams/finetuning_args.py:73 to 93).

    Raises
    ------
    InputError : another way to train a part, or no rank or targets in a file of Axolotl.
    """
    name = next((one for one in ADAPTERS if one in there or one in defaults), None)
    value = None if name is None else there.get(name, defaults.get(name))
    if name is None or value in ADAPTERS[name]:
        return None
    if value not in ("lora", "qlora"):
        raise InputError(f"{source.where}: {name}: got {shorten(value)}; allowed: "
                         f"{ADAPTERS[name][0] or 'none'}, lora"
                         f"{', qlora' if name == 'adapter' else ''} (others have no price)")
    axolotl = name == "adapter"
    lora: dict[str, Any] = {} if axolotl else {"rank": 8}
    lora |= {theirs: there.pop(own) for own, theirs in _LORA.items() if own in there}
    if there.pop("lora_target_linear", None) or lora.get("targets") == "all":
        lora["targets"] = "all-linear"
    if axolotl and "targets" not in lora:
        raise InputError(f"{source.where}: lora_target_modules: missing; needed: modules with "
                         "adapters, or lora_target_linear: true")
    saved = there.pop("lora_modules_to_save", None) or there.pop("additional_target", None) or ()
    saved = saved.split(",") if isinstance(saved, str) else saved
    parts = _parts(saved, f"{source.where}: lora_modules_to_save")
    layers = there.pop("peft_layers_to_transform", None)
    kept = None
    for (setting, on), format_ in _QUANTIZED.items():
        if there.get(setting) == on and type(there.get(setting)) is type(on):
            kept = format_
            del there[setting]
    for setting in _COSTLESS:
        there.pop(setting, None)
    if value == "qlora" and kept is None:
        raise InputError(f"{source.where}: adapter: got 'qlora' without load_in_4bit; allowed: "
                         "with load_in_4bit: true")
    return Trainable.parse({"lora": lora, "parts": parts, "layers": layers,
                            "frozen_precision": kept}, f"{source.where}: adapters")


def _parts(saved: Collection[str], where: str) -> list[str]:
    """Parts that are trained beside adapters, by the names of their modules."""
    if unknown := [one for one in saved if one not in _SAVED]:
        raise InputError(f"{where}: got {shorten(unknown[0])}; allowed: {', '.join(_SAVED)}")
    return [_SAVED[one] for one in saved]


def loss_of(there: Plain) -> str:
    """How the loss runs by a file of Axolotl or LLaMA-Factory; its settings are taken out.

    Axolotl fuses where its own flag says so (axolotl-ai-cloud/axolotl@0206321
    src/axolotl/integrations/liger/plugin.py, pre_model_load), and cuts cross-entropy where the
    plugin is there (axolotl@1188fdc src/axolotl/integrations/cut_cross_entropy/args.py);
    LLaMA-Factory leaves Liger as it is in the stages that have a price
    (hiyouga/LLaMA-Factory@1212919 src/llamafactory/model/model_utils/liger_kernel.py).
    """
    plugins = there.get("plugins")
    cut = there.pop("cut_cross_entropy", True)
    if isinstance(plugins, list) and _CUT in plugins and cut is True:
        return "cut"
    fused = there.get("liger_fused_linear_cross_entropy") or there.get("enable_liger_kernel")
    return "liger" if fused is True else "whole"


def with_loss(stack: Any, loss: str) -> dict[str, Any]:
    """A job's stack whose loss runs so."""
    return {**({"base": stack} if isinstance(stack, str) else stack), "loss": loss}


def of_arguments(
    words: Mapping[str, Words], source: Source
) -> tuple[Trainable | None, bool, set[str]]:
    """Adapters that a program's arguments ask for by TRL's names; whether Liger's loss runs; and
    the arguments that are read.

    Raises
    ------
    InputError : adapters by other names, of another kind, or whose targets are the model's.
    """
    given = {name.replace("-", "_"): (name, value) for name, value in words.items()}
    read = {name for name in (*_TRL, *_TRL_FREE, LIGER) if name in given}

    def value(name: str) -> Any:
        if name not in given:
            return _TRL.get(name, False)
        said = given[name][1]
        return (tuple(said) if name in ("lora_target_modules", "lora_modules_to_save")
                else typed(said[0]) if said else True)

    names = {given[name][0] for name in read}
    fused = value(LIGER) is True
    if value("use_peft") is not True:
        other = [written for name, (written, said) in given.items()
                 if is_adapter(name) and said not in (("False",), ("false",), ("None",))
                 and name not in source.asked.ignored]
        if other and "use_peft" not in given:
            raise InputError(f"{source.where}: --{other[0]}: it asks for adapters, which are read "
                             "by TRL's arguments alone (--use_peft, --lora_r, "
                             "--lora_target_modules); price the job with `nest evaluate "
                             "--lora-rank`, or all parameters with --ignore")
        return None, fused, names
    for name in ("use_dora", "lora_target_parameters"):
        if value(name):
            raise InputError(f"{source.where}: --{name}: got {shorten(value(name))}; allowed: "
                             "without it (other adapters than LoRA of linear layers have no price)")
    targets = value("lora_target_modules")
    if not targets:
        raise InputError(f"{source.where}: --lora_target_modules: missing; needed: modules with "
                         "adapters (PEFT chooses them by the model's type otherwise)")
    parts = _parts(value("lora_modules_to_save"), f"{source.where}: --lora_modules_to_save")
    kept = value("bnb_4bit_quant_type") if value("load_in_4bit") is True else (
        "int8" if value("load_in_8bit") is True else None)
    return Trainable.parse({
        "lora": {"rank": value("lora_r"), "targets": list(targets),
                 "dropout": value("lora_dropout")},
        "parts": parts, "frozen_precision": kept,
    }, f"{source.where}: adapters"), fused, names


def of_torchtitan(call: PythonCall, model: Model, source: Source, notes: list[str]) -> Trainable:
    """Adapters of a LoRAConverter (torchtitan==0.3.0 torchtitan/components/lora.py:141).

    Raises
    ------
    InputError : fields that are not understood, or targets without a price.
    """
    known = {"rank", "alpha", "target_modules"}
    if call.words or not {*call.fields} <= known:
        raise InputError(f"{source.where}: LoRAConverter: got "
                         f"{shorten(next(iter({*call.fields} - known), call.words))}; allowed: "
                         f"{', '.join(sorted(known))}")
    rank, names = call.fields.get("rank", 8), call.fields.get("target_modules")
    if names is not None and (not isinstance(names, list) or not names or not {
            *map(str, names)} <= {*_TITAN}):
        raise InputError(f"{source.where}: LoRAConverter.target_modules: got {shorten(names)}; "
                         f"allowed: None, or a list of {', '.join(_TITAN)}")
    if model.moe is not None and (names is None or {*names} & {*_TITAN_DENSE}):
        raise InputError(f"{source.where}: LoRAConverter.target_modules: got {shorten(names)}; "
                         "allowed: linear layers of attention (experts get no adapters there, "
                         "which has no price beside those of shared experts)")
    if names is None:
        notes.append("no price: the adapter of the head (LoRAConverter without target_modules): "
                     "rank x (hidden + vocab) parameters, and two products so narrow")
    targets = ["all-linear"] if names is None else list(dict.fromkeys(
        one for name in names for one in _TITAN[name]))
    return Trainable.parse({"lora": {"rank": rank, "targets": targets}},
                           f"{source.where}: LoRAConverter")
