"""Families whose replies are messages on channels: each replaces `ReplyFormat` completely."""
