"""Sampling with transformers: whole batches of requests, each with a seed of its own, so that a completion does not
depend on the others in its batch, up to rounding. Log-probabilities are those of the model's own distribution: of the
logits as they are, before temperature and top_p."""


def batches_of(rows, size):
    """Rows of similar length together, since a batch is as long as its longest prompt."""
    ordered = sorted(rows, key=lambda row: (len(row.prompt_ids), row.id))
    return [ordered[begin : begin + size] for begin in range(0, len(ordered), size)]


def next_ids(logits_BV, rows, uniform_B):
    """The id that each row continues with, and its log-probability: inverse transform sampling with a uniform number
    for each row, so that a row's choice depends on its own distribution and seed alone."""
    import torch

    logits_BV = logits_BV.float()
    device = logits_BV.device
    temperature_B = torch.tensor([row.temperature for row in rows], dtype=torch.float64, device=device)
    greedy_B = temperature_B == 0
    probabilities_BV = torch.softmax(logits_BV.double() / torch.where(greedy_B, 1.0, temperature_B)[:, None], -1)
    order_BV = None
    if any(row.top_p < 1 for row in rows):
        top_p_B = torch.tensor([row.top_p for row in rows], dtype=torch.float64, device=device)
        probabilities_BV, order_BV = probabilities_BV.sort(-1, descending=True)
        before_BV = probabilities_BV.cumsum(-1) - probabilities_BV
        probabilities_BV = torch.where((before_BV < top_p_B[:, None]) | (top_p_B[:, None] >= 1), probabilities_BV, 0.0)
    sums_BV = probabilities_BV.cumsum(-1)
    wanted_B = torch.stack(list(uniform_B)).to(sums_BV) * sums_BV[:, -1]
    place_B1 = torch.searchsorted(sums_BV, wanted_B[:, None], right=True)
    # Rounding may bring the number to the very end, where there may be tokens of probability 0.
    columns_V = torch.arange(sums_BV.shape[1], device=device)
    last_B1 = torch.where(probabilities_BV > 0, columns_V, 0).amax(-1, keepdim=True)
    place_B1 = torch.minimum(place_B1, last_B1)
    ids_B1 = place_B1 if order_BV is None else order_BV.gather(1, place_B1)
    ids_B1 = torch.where(greedy_B[:, None], logits_BV.argmax(-1, keepdim=True), ids_B1)
    logprobs_B = torch.log_softmax(logits_BV, -1).gather(1, ids_B1)[:, 0]
    return ids_B1[:, 0].tolist(), logprobs_B.tolist()


def write_batch(model, tokenizer, rows, write):
    """Continues all rows together, and calls write(row) for each one when it ends. `tokenizer` is needed where a row
    has texts that end it."""
    import torch

    device = model.device
    length = max(len(row.prompt_ids) for row in rows)
    ids_BT = torch.zeros(len(rows), length, dtype=torch.long)
    mask_BT = torch.zeros(len(rows), length, dtype=torch.long)
    uniform = []
    for index, row in enumerate(rows):
        ids_BT[index, length - len(row.prompt_ids) :] = torch.tensor(row.prompt_ids)
        mask_BT[index, length - len(row.prompt_ids) :] = 1
        generator = torch.Generator().manual_seed(row.seed)
        uniform.append(torch.rand(row.max_new_tokens, generator=generator, dtype=torch.float64))
    ids_BT, mask_BT = ids_BT.to(device), mask_BT.to(device)
    positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    past = None
    going_on = list(rows)
    while going_on:
        with torch.inference_mode():
            output = model(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                position_ids=positions_BT,
                past_key_values=past,
                use_cache=True,
                logits_to_keep=1,
            )
        past = output.past_key_values
        uniform_B = [own[min(len(row.ids), len(own) - 1)] for row, own in zip(rows, uniform)]
        chosen, logprobs = next_ids(output.logits[:, -1], rows, uniform_B)
        for row, token, logprob in zip(rows, chosen, logprobs):
            if row.finish_reason:
                continue
            row.ids.append(token)
            row.logprobs.append(min(logprob, 0.0))
            text = tokenizer.decode(row.ids) if row.stop else ""
            if token in row.stop_token_ids or any(stop in text for stop in row.stop):
                row.finish_reason = "stop"
            elif len(row.ids) == row.max_new_tokens:
                row.finish_reason = "length"
            if row.finish_reason:
                row.written_by = row.weight_version
                write(row)
        going_on = [row for row in rows if not row.finish_reason]
        ids_BT = torch.tensor(chosen, device=device)[:, None]
        mask_BT = torch.cat([mask_BT, torch.ones_like(ids_BT)], 1)
        positions_BT = positions_BT[:, -1:] + 1


def add_model_arguments(add):
    """--device and --dtype, for load_model()."""
    add("--device", choices=["auto", "cpu", "cuda"], default="auto", help="auto: cuda where a GPU is visible")
    add(
        "--dtype",
        choices=["auto", "float32", "bfloat16"],
        default="auto",
        help="of the computation; auto: bfloat16 on a GPU, float32 on a CPU",
    )


def load_model(folder, args):
    """transformers' model of a folder, as `args` say (add_model_arguments)."""
    import torch
    import transformers

    from shared.text_model import load_text_model

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    device = args.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"auto": torch.bfloat16 if device == "cuda" else torch.float32}.get(args.dtype) or getattr(
        torch, args.dtype
    )
    return load_text_model(folder, dtype=dtype).to(device).eval()


def load_tokenizer(folder):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
