"""`shoal dashboard`: pages in the browser that show jobs while they run and after their end.

RunningJob of shoal.client asks a job; course.py and lanes.py remember what it told, and
facts.py says what the page shows of it. watch.py does so once a second on a thread; jobs.py has the
list of jobs, and watches those that are looked at. server.py serves the pages to those who have the
token, and run.py is the command. What the browser does with it is
in static/, which is plain HTML, CSS and JavaScript; its charts are drawn by uPlot.
"""
