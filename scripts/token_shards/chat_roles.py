"""The roles of messages: those of the chat templates, and what other formats call them."""

# What other formats call a role. `ipython` and `environment` are the names of `tool` in Llama's and OLMo's templates.
ALIASES = {
    "user": ("human",),
    "assistant": ("gpt", "chatgpt", "model", "bot", "ai", "bing", "bard"),
    "system": (),
    "developer": (),
    "tool": (
        "function",
        "observation",
        "function_response",
        "tool_response",
        "tool_result",
        "tool_results",
        "ipython",
        "environment",
    ),
}
# The assistant's role where the content is a tool call: ShareGPT's and ms-swift's name.
CALL_ROLES = ("function_call", "tool_call")
KNOWN_ROLES = tuple(name for role, others in ALIASES.items() for name in (role, *others)) + CALL_ROLES
_CANONICAL = {name: role for role, others in ALIASES.items() for name in (role, *others)}


def canonical_role(role):
    """The role that chat templates know for this one, or a role of CALL_ROLES; a role that nobody knows as it is."""
    lower = role.lower()
    return lower if lower in CALL_ROLES else _CANONICAL.get(lower, role)
