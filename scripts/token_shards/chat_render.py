"""Renders conversations with a chat template exactly as transformers does."""

import re

from .errors import BadDocument, InputError

MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Template:
    """A Jinja template with the variables that every conversation gets."""

    def __init__(self, source, variables, where="chat template"):
        from jinja2 import TemplateSyntaxError
        from transformers.utils.chat_template_utils import _compile_jinja_template

        self.source, self.variables = source, variables
        self.has_marks = MARKS.search(source) is not None
        try:
            self._compiled = _compile_jinja_template(source)
        except TemplateSyntaxError as error:
            raise InputError(f"{where}, line {error.lineno}: not a Jinja template: {error.message}") from error

    def render(self, messages, tools, where, *, generation_prompt=False, **more):
        return self._render(messages, tools, where, generation_prompt, False, more)[0]

    def render_marked(self, messages, tools, where, **more):
        """(text, [(begin, end)] of the {% generation %} blocks that are not empty)"""
        text, spans = self._render(messages, tools, where, False, True, more)
        return text, [(begin, end) for begin, end in spans if end > begin]

    def _render(self, messages, tools, where, generation_prompt, marks, more):
        # render_jinja_template of transformers 5.24 gives a template copies of the messages, which hide the keys that
        # it looks at (unused_keys.Watched), and no function as a variable.
        from jinja2.exceptions import TemplateError, UndefinedError
        from transformers.utils.chat_template_utils import _render_with_assistant_indices

        given = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": generation_prompt}
        given |= {**self.variables, **more}
        try:
            if marks:
                return _render_with_assistant_indices(self._compiled, **given)
            return self._compiled.render(**given), []
        except MemoryError:
            raise
        except Exception as error:  # a template can raise whatever an expression in it raises
            refused = type(error) is TemplateError and not isinstance(error, UndefinedError)
            reason = f"the chat template {'refuses' if refused else 'fails on'} the conversation"
            raise BadDocument(reason, f"{where}: {reason}: {error}") from error


def names_variable(source, name):
    """Whether the text of a template names this variable."""
    return re.search(rf"\b{re.escape(name)}\b", source) is not None
