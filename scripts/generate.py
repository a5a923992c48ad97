#!/usr/bin/env python3
"""Prints greedy continuations of several models, grouped by prompt, using transformers.

scripts/generate.py teacher=work/quickstart/teacher before=work/quickstart/student after=runs/quickstart/model
"""

import script_path

import textwrap
from pathlib import Path

from shared.command_line import argument_parser, at_least, fail, name_and_path
from shared.text_model import load_text_model

PROMPTS = (
    'def read_json(path):\n    """Read',
    "import torch\nimport torch.nn as nn\n\n\nclass MLP(nn.Module):\n    def __init__(self",
    "    Args:\n        input (Tensor): the input tensor.\n        dim (int",
)


def parse_model(text):
    name, folder = name_and_path(text, "FOLDER")
    if not Path(folder, "config.json").is_file():
        fail(f"{folder}: no config.json in it; not a model folder")
    return name, folder


def continue_prompts(folder, prompts, tokens, device):
    """The greedy continuation of each prompt, without the prompt."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = load_text_model(folder, dtype=dtype).to(device).eval()
    texts = []
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt").to(device)
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
        texts.append(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts


def main():
    parser = argument_parser(__doc__)
    parser.add_argument(
        "models", nargs="+", metavar="NAME=FOLDER", help="a Hugging Face folder and the name to show for it"
    )
    parser.add_argument(
        "--prompt", action="append", help="text to continue; repeatable (default: three beginnings of Python code)"
    )
    parser.add_argument("--tokens", type=at_least(1), default=48, help="length of each continuation (default 48)")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    args = parser.parse_args()
    models = [parse_model(text) for text in args.models]
    prompts = args.prompt or PROMPTS

    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    texts = [continue_prompts(folder, prompts, args.tokens, device) for _, folder in models]
    for index, prompt in enumerate(prompts):
        print(f"--- prompt {index + 1}\n{textwrap.indent(prompt, '    | ', lambda line: True)}")
        for (name, _), continuations in zip(models, texts):
            print(f"{name}:\n{textwrap.indent(continuations[index], '    | ', lambda line: True)}")


if __name__ == "__main__":
    main()
