"""Networks that generate text, of any architecture that transformers knows, computed step by step."""
