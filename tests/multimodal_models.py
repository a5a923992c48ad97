"""Tiny random multimodal models, in the namings of tensors that folders of the hub have."""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

from model_shapes import randomise

IMAGE_TOKEN = 7
IMAGE = 16  # pixels of a side
PATCH = 8
TOWER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, patch_size=PATCH)
VISION = TOWER | dict(image_size=IMAGE)


def llava(text_config, **keys):
    vision = transformers.CLIPVisionConfig(**VISION)
    return transformers.LlavaConfig(
        text_config=text_config, vision_config=vision, image_token_index=IMAGE_TOKEN, vision_feature_layer=-1, **keys
    )


def mistral3(text_config, **keys):
    vision = transformers.PixtralVisionConfig(**VISION, head_dim=16)
    return transformers.Mistral3Config(
        text_config=text_config, vision_config=vision, image_token_index=IMAGE_TOKEN, spatial_merge_size=1, **keys
    )


def gemma3(text_config, **keys):
    vision = transformers.SiglipVisionConfig(**VISION, vision_use_head=False)
    patches = (IMAGE // PATCH) ** 2
    return transformers.Gemma3Config(
        text_config=text_config,
        vision_config=vision,
        image_token_index=IMAGE_TOKEN,
        mm_tokens_per_image=patches,
        **keys,
    )


def gemma4(text_config, **keys):
    pooling = dict(pooling_kernel_size=2, position_embedding_size=8)  # of four patches one
    vision = transformers.Gemma4VisionConfig(**TOWER, num_key_value_heads=2, head_dim=16, **pooling)
    return transformers.Gemma4Config(text_config=text_config, vision_config=vision, image_token_id=IMAGE_TOKEN, **keys)


def gemma4_unified(text_config, **keys):
    hidden = text_config.hidden_size
    vision = transformers.Gemma4UnifiedVisionConfig(
        patch_size=PATCH, pooling_kernel_size=1, mm_embed_dim=hidden, mm_posemb_size=8, output_proj_dims=hidden
    )
    return transformers.Gemma4UnifiedConfig(
        text_config=text_config, vision_config=vision, image_token_id=IMAGE_TOKEN, **keys
    )


def qwen3_5(text_config, **keys):
    vision = transformers.Qwen3_5VisionConfig(
        depth=2,
        hidden_size=32,
        num_heads=2,
        intermediate_size=48,
        patch_size=PATCH,
        spatial_merge_size=1,
        out_hidden_size=text_config.hidden_size,
        num_position_embeddings=16,
    )
    return transformers.Qwen3_5Config(text_config=text_config, vision_config=vision, image_token_id=IMAGE_TOKEN, **keys)


# The part of a Qwen3.5 that predicts further tokens: transformers has no class for it, and leaves it out.
FURTHER_TOKENS = {"mtp.fc.weight": (64, 128), "mtp.layers.0.input_layernorm.weight": (64,), "mtp.norm.weight": (64,)}

# How the tensors of a folder are named: what a name begins with in what transformers writes -> in the folder.
SPELLINGS = {
    "as published": {},
    "transformers 5": {
        "language_model.model.": "model.language_model.",
        "language_model.lm_head.": "lm_head.",
        "vision_tower.": "model.vision_tower.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    },
}


def renamed(name, spelling):
    for old, new in SPELLINGS[spelling].items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


def save(folder, config, seed, dtype=torch.float32, spelling="as published", shard_size=None):
    """Writes a random model with norms and biases that are not ones and zeros, and files of a processor."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    randomise(model, 0.2)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            buffer.add_(0.2 * torch.randn_like(buffer))
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard_size} if shard_size else {}))
    folder = Path(folder)
    for path in folder.glob("*.safetensors"):
        tensors = {renamed(name, spelling): tensor for name, tensor in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    if config.model_type.startswith("qwen3_5"):
        file = max(folder.glob("*.safetensors"))
        further = {name: torch.randn(shape).to(dtype) for name, shape in FURTHER_TOKENS.items()}
        save_file(load_file(file) | further, file, metadata={"format": "pt"})
        if index.exists():
            content = json.loads(index.read_text())
            content["weight_map"] |= dict.fromkeys(further, file.name)
            index.write_text(json.dumps(content))
    if index.exists():
        content = json.loads(index.read_text())
        content["weight_map"] = {renamed(name, spelling): file for name, file in content["weight_map"].items()}
        index.write_text(json.dumps(content))
    (folder / "preprocessor_config.json").write_text('{"size": 16}')
    (folder / "processor_config.json").write_text('{"processor_class": "PixtralProcessor"}')
    return str(folder)


def load(folder):
    """(model in fp32, what transformers reports about the files)"""
    return transformers.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )


def with_image(model):
    """The logits of a text with an image in it."""
    patches = (IMAGE // PATCH) ** 2
    tokens = torch.tensor([[3, 4, *[IMAGE_TOKEN] * patches, 5, 6, 9]])
    generator = torch.Generator().manual_seed(1)
    if model.config.model_type.startswith("gemma4"):
        side = 2 * (IMAGE // PATCH) if model.config.model_type == "gemma4" else IMAGE // PATCH
        inputs = {
            "pixel_values": torch.rand(1, side**2, 3 * PATCH**2, generator=generator),
            "image_position_ids": torch.tensor([[[i % side, i // side] for i in range(side**2)]]),
            "mm_token_type_ids": (tokens == IMAGE_TOKEN).long(),
        }
    elif model.config.model_type.startswith("qwen3_5"):
        inputs = {
            "pixel_values": torch.randn(patches, 3 * 2 * PATCH**2, generator=generator),
            "image_grid_thw": torch.tensor([[1, IMAGE // PATCH, IMAGE // PATCH]]),
            "mm_token_type_ids": (tokens == IMAGE_TOKEN).int(),
        }
    else:
        inputs = {"pixel_values": torch.randn(1, 3, IMAGE, IMAGE, generator=generator)}
    if model.config.model_type == "mistral3":
        inputs["image_sizes"] = torch.tensor([[IMAGE, IMAGE]])
    with torch.no_grad():
        return model(tokens, **inputs).logits


def all_tensors(folder):
    tensors = {}
    for path in Path(folder).glob("*.safetensors"):
        tensors |= load_file(path)
    return tensors


def is_text(name):
    return "language_model" in name or name.startswith("lm_head.")


def own_name(name):
    """The name of a text model's tensor in a folder of the text model alone."""
    for prefix in ("model.language_model.", "language_model.model."):
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    return name.removeprefix("language_model.")


def same_bytes(one, other):
    bytes_of = (tensor.flatten().view(torch.uint8) for tensor in (one, other))
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*bytes_of)
