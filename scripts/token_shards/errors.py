"""The errors of the conversion to token shards."""


class InputError(Exception):
    """A mistake in the input or in the arguments. The message says the file, the line and the mistake."""


class Unfinished(InputError):
    """The conversion cannot go on, but the unfinished work in the output folder is right, and stays there."""


class BadDocument(InputError):
    """A mistake in one document, which can be left out. Documents are counted by `reason`, a few words without
    names, numbers or positions: "content is null"."""

    def __init__(self, reason, message):
        super().__init__(message)
        self.reason = reason

    def __reduce__(self):  # travels between processes with both arguments
        return type(self), (self.reason, str(self))


def check_unicode(text, where):
    """BadDocument: the text has half a surrogate pair, which JSON can express and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadDocument(
            "text with half a surrogate pair",
            f"{where}: not Unicode text: a lone surrogate at character {error.start}",
        ) from error
