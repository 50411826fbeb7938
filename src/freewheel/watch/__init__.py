"""Runs watched while they go on: their data, made again when they change, and the page of them, served to this host."""

from freewheel.watch._server import PORT as PORT, PageServer as PageServer
from freewheel.watch._watched import View as View, Watched as Watched
