"""The names that cross a border, which are those of resnetboost_api."""

from resnetboost_api.names import *  # noqa: F403
