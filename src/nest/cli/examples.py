"""Examples at the end of each `--help`: one or two commands that work as they stand."""

from __future__ import annotations

EXAMPLES = {
    "plan": (
        "nest plan llama2-7b dgx-a100 --devices 64 --global-batch 512 --seq-len 4096",
        "nest plan gpt3-175b dgx-h100 --job job.yaml --tp 8 --pp 1..16 -o plan.json",
        "nest plan - < question.json > plan.json",
    ),
    "ask": ("nest ask < questions.jsonl > answers.jsonl",),
    "evaluate": (
        "nest evaluate llama2-7b dgx-a100 --global-batch 512 --seq-len 4096 --tp 8",
        "nest evaluate plan.json",
    ),
    "compare": (
        "nest compare llama2-7b dgx-a100 --global-batch 512 --seq-len 4096",
    ),
    "diagnose": (
        "nest diagnose plan.json train.log",
        "nest diagnose plan.json train.log --trace rank0.json --trace rank1.json",
    ),
    "report": ("nest report plan.json -o report.html", "nest report plan.json other.json"),
    "plot": ("nest plot plan.json --kind memory -o memory.svg",),
    "explain": ("nest explain plan.json",),
    "export": ("nest export plan.json --to megatron -o launch",),
    "read": ("nest read launch/launch.sh -o job",),
    "capture": (
        "nest capture -- bash run.sh",
        "nest capture --yes -o captured.json -- sbatch job.slurm",
    ),
    "improve": ("nest improve run.sh dgx-h100 --devices 64 -o better",),
    "learn": (
        "nest learn plan.json:23.4 -o mine.yaml",
        "nest learn mine.yaml train.log -o more.yaml",
    ),
    "next": ("nest next llama2-7b dgx-a100 --job job.yaml --learned mine.yaml -o runs",),
    "replan": ("nest replan plan.json --without node17 -o next.json",),
    "goodput": ("nest goodput plan.json", "nest goodput plan.json --failures failures.yaml"),
    "serve": ("nest serve --port 8316", "nest serve --host 0.0.0.0 --token-file token.txt"),
    "mcp": ("nest mcp --threads 2",),
    "doctor": ("nest doctor",),
    "warm": ("nest warm", "nest warm -o kernels.zip", "nest warm kernels.zip"),
    "simulate": ("nest simulate plan.json --trace trace.json",),
    "validate": ("nest validate", "nest validate runs.csv -o priced.csv"),
    "list": ("nest list models",),
    "schema": ("nest schema plan",),
    "calibrate": ("nest calibrate gemm products.csv --device h100-sxm -o mine.yaml",),
    "calibrate gemm": ("nest calibrate gemm products.csv --device h100-sxm -o mine.yaml",),
    "calibrate collectives": (
        "nest calibrate collectives all_reduce.txt --cluster dgx-h100 -o mine.yaml",
    ),
    "calibrate runs": ("nest calibrate runs runs.csv --stack megatron-core -o mine.yaml",),
    "probe": ("nest probe --write probe.py",
              "nest probe probe.json topology.conf --stack fsdp -o mine"),
    "profile": ("nest profile metis profiles --output-bytes 8MiB -o profile.yaml",),
    "profile metis": ("nest profile metis profiles --output-bytes 8MiB -o profile.yaml",),
    "profile galvatron": (
        "nest profile galvatron t.json m.json --layers 32 --hidden 4096 -o p.yaml",
    ),
    "profile trace": (
        "nest profile trace t.json gpt2-xl --layer GPT2Block --seq-len 1024 -o p.yaml",
    ),
    "sweep": ("nest sweep study.yaml", "nest sweep show study.yaml"),
    "sweep least": ("nest sweep least study.yaml --axis cluster.devices "
                    '--goal "days <= 30"',),
    "sweep curve": ("nest sweep curve study.yaml --axis cluster.device.memory --within 1%",),
    "design": ("nest design study.yaml", "nest design study.yaml --want days --budget 5e6"),
    "sweep run": ("nest sweep study.yaml --engine dask://head:8786 -o answers",),
    "sweep show": ("nest sweep show study.yaml --objective tokens_per_money",
                   "nest sweep show answers --plan 17"),
    "bench": ("nest bench instances", "nest bench score answers.json"),
    "bench instances": ("nest bench instances -o nest-instances",),
    "bench answers": ("nest bench answers --planners manual,zero -o nest-answers",),
    "bench score": ("nest bench score answers.json",
                    "nest bench score nest-answers/manual.json nest-answers/zero.json"),
}


def epilog(command: str) -> str | None:
    """The examples of a command for its help, each on a line of its own; None: it has none."""
    if command not in EXAMPLES:
        return None
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[command])
