"""Parts of scripts/studies/baby_llama.py."""
